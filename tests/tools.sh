#!/usr/bin/env bash
# Unchanged tools in a container of a newer Debian. Suricata 7 must see every frame of known traffic and raise its alert:
# from a file, with AF_PACKET, with libpcap, and on a feed of a daemon by libweirpcap.so and by `weir attach`. tcpdump must
# capture the same bytes. `weir block` excludes the flow of an alert from the feed at the host. The containers have a
# separate Docker daemon in a network namespace at the end of a veth.
set -euo pipefail
# shellcheck source=tests/live.sh
source "$(dirname "$0")/live.sh"
cd "$root"

scratch=
daemon_pid=
attach_pid=
# Containers that read from the daemon.
block_pid=
rx=weir-tools-rx-$$
tx=weir-tools-tx-$$

# shellcheck disable=SC2317  # by the trap
tidy() {
    for pid in $attach_pid $block_pid $daemon_pid; do end "$pid"; done
    stop_dockerd
    remove_namespaces "$rx" "$tx"
    if [[ -n $scratch ]]; then rm -rf "$scratch"; fi
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ $EUID -ne 0 ]]; then
    skip root_tools 'containers that capture, and making a Debian system, need root'
    exit 0
fi
for tool in dockerd docker jq python3; do
    command -v "$tool" >/dev/null || {
        skip docker_tools "$tool is missing"
        exit 0
    }
done
rc=0
tree=$(tests/tools/suricata-image.sh) || rc=$?
if [[ $rc -eq 3 ]]; then
    skip tools 'no mirror with Debian 13, or a debootstrap that does not know it (WEIR_DEBIAN_MIRROR=URL names a mirror)'
    exit 0
fi
[[ $rc -eq 0 ]] || exit "$rc"
scratch=$(mktemp -d)

cargo build --locked --release -p weir --bin weir
weir=$target_dir/release/weir
libraries=$(packaging/libraries.sh)

make_link "$rx" "$tx"
start_dockerd "$rx" || {
    skip docker_tools "dockerd does not run here: $(tail -n 1 "$scratch/dockerd.log")"
    exit 0
}
docker import "$tree" weir-test-suricata >/dev/null

mkdir "$scratch/tools"
cp tests/tools/suricata.yaml tests/tools/weir.rules "$scratch/tools/"
python3 tests/tools/trace.py "$scratch/tools/trace.pcap"
frames=$(LC_ALL=C capinfos -TrcM "$scratch/tools/trace.pcap" | cut -f2)
[[ $frames -gt 0 ]] || die "capinfos says that the trace has '$frames' frames"
send_trace() {
    ip netns exec "$tx" "$weir" gen eth0 --file "$scratch/tools/trace.pcap" >"$scratch/gen.log" 2>&1 ||
        die "weir gen: $(cat "$scratch/gen.log")"
}

suricata() { # NAME [docker run's options] -- ARGUMENTS: starts one with our rules, and waits until it reads
    local name=$1 options=()
    shift
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    mkdir "$scratch/$name"
    docker run --detach --name "$name" --read-only --tmpfs /run --cap-drop=ALL --security-opt=no-new-privileges \
        "${options[@]}" --volume "$scratch/tools:/tools:ro" --volume "$scratch/$name:/log" weir-test-suricata \
        suricata -c /tools/suricata.yaml -l /log "$@" >/dev/null
    until_true "Suricata ($name)" reads_or_ended "$name"
}
reads_or_ended() {
    local running
    running=$(docker inspect --format '{{.State.Running}}' "$1")
    [[ $running != true ]] || docker logs "$1" 2>&1 | grep -q 'Engine started'
}

# The last counts that Suricata has written.
counts() { jq -c 'select(.event_type == "stats").stats' "$scratch/$1/eve.json" | tail -n 1; }
# Not Suricata's own counts: with libpcap it writes them only at the end.
settle() { # NAME
    until_true "the alert of Suricata ($1)" grep -q '"event_type":"alert"' "$scratch/$1/eve.json"
    sleep 2
}

# Checks that Suricata ends without an error, has seen every frame, and has raised exactly the one expected alert.
expect_alert() { # NAME
    local code alerts
    docker kill --signal=TERM "$1" >/dev/null 2>&1 || true
    code=$(timeout "$limit_s" docker wait "$1") || die "$1 did not end within $limit_s s"
    [[ $code -eq 0 ]] || die "$1: exit status $code: $(docker logs "$1" 2>&1)"
    alerts=$(jq -c 'select(.event_type == "alert") | [.alert.signature_id, .src_ip, .src_port, .http.url]' \
        "$scratch/$1/eve.json")
    [[ $alerts == '[1000001,"10.1.0.7",40007,"/evil"]' ]] || die "$1: not the one alert: '$alerts'"
    counts "$1" | jq -e --argjson frames "$frames" '.decoder.pkts == $frames and (.capture.kernel_drops // 0) == 0
        and .detect.alert == 1 and .tcp.invalid_checksum == 0' >/dev/null ||
        die "$1: not every frame: $(counts "$1" | jq -c '[.decoder.pkts, .capture, .detect.alert, .tcp]')"
    docker rm "$1" >/dev/null
    say "$1: $frames frames, every one, and the alert"
}

capture_by_tcpdump() { # NAME INTERFACE docker run's options: until it has as many frames as the trace
    local name=$1 interface=$2
    shift 2
    mkdir "$scratch/$name"
    # Not as another user, who could not write to this folder.
    docker run --detach --name "$name" --read-only --cap-drop=ALL "$@" --volume "$scratch/tools:/tools:ro" \
        --volume "$scratch/$name:/log" weir-test-suricata \
        tcpdump -Z root -ni "$interface" -c "$frames" -w /log/out.pcap >/dev/null
    until_true "tcpdump ($name)" listens "$name"
}
listens() { docker logs "$1" 2>&1 | grep -q 'listening on'; }

# Checks that tcpdump has captured every byte of every frame, in the order of the trace.
expect_same_frames() { # NAME
    local sums code
    code=$(timeout "$limit_s" docker wait "$1") || die "$1 did not get every frame within $limit_s s"
    [[ $code -eq 0 ]] || die "$1: exit status $code: $(docker logs "$1" 2>&1)"
    [[ $(tcpdump -nr "$scratch/$1/out.pcap" 2>/dev/null | wc -l) -eq $frames ]] || die "$1: not $frames frames"
    sums=$(for file in "$scratch/tools/trace.pcap" "$scratch/$1/out.pcap"; do
        tcpdump -nr "$file" -txx 2>/dev/null | sha256sum
    done)
    [[ $(sort -u <<<"$sums" | wc -l) -eq 1 ]] || die "$1: its frames are not those of the trace"
    docker rm "$1" >/dev/null
    say "$1: $frames frames, every one, byte for byte"
}

# Whether N clients read the daemon's feeds.
reads_feed() { "$weir" status --json --socket "$scratch/run/weir.sock" | jq -e ".clients | length == $1"; }

say '=== Suricata reads the file'
suricata file --network=none -- -r /tools/trace.pcap
expect_alert file

say '=== Suricata with AF_PACKET at the end of the veth'
suricata af-packet --network=host --cap-add=NET_RAW -- --af-packet=eth0
send_trace
settle af-packet
expect_alert af-packet

say '=== tcpdump of Debian 13'
capture_by_tcpdump tcpdump eth0 --network=host --cap-add=NET_RAW
send_trace
expect_same_frames tcpdump

say '=== Suricata with libpcap there'
suricata pcap --network=host --cap-add=NET_RAW -- --pcap=eth0
send_trace
settle pcap
expect_alert pcap

say '=== the same in containers that have the socket of a daemon and libweirpcap.so: no network, no capability'
mkdir -m 755 "$scratch/run"
printf '[sources.eth0]\nusers = [0]\nring_mib = 16\n' >"$scratch/weir.toml"
ip netns exec "$rx" "$weir" serve --config "$scratch/weir.toml" --socket "$scratch/run/weir.sock" \
    >"$scratch/serve.log" 2>&1 &
daemon_pid=$!
until_true 'the daemon' grep -q 'weir: serving ' "$scratch/serve.log"
cp "$libraries/libweirpcap.so" "$scratch/tools/"
by_library=(--network=none --env LD_PRELOAD=/tools/libweirpcap.so --volume "$scratch/run:/run/weir:ro")

suricata library "${by_library[@]}" -- --pcap=host:eth0
until_true 'Suricata to read the feed' reads_feed 1
capture_by_tcpdump library-tcpdump host:eth0 "${by_library[@]}"
until_true 'tcpdump to read the feed' reads_feed 2
send_trace
expect_same_frames library-tcpdump
settle library
expect_alert library

say '=== Suricata with AF_PACKET on an interface that is fed'
ip netns exec "$rx" "$weir" attach host:eth0 --netdev weir0 --socket "$scratch/run/weir.sock" \
    >"$scratch/attach.log" 2>&1 &
attach_pid=$!
until_true 'weir attach to read the feed' reads_feed 1
suricata attached --network=host --cap-add=NET_RAW -- --af-packet=weir0
send_trace
settle attached
expect_alert attached
end "$attach_pid"
attach_pid=

say '=== an alert takes its flow out of the feed at the host: sent again, the trace raises none'
of_flow=$(tcpdump -nr "$scratch/tools/trace.pcap" 'port 40007' 2>/dev/null | wc -l)
suricata ids "${by_library[@]}" --env WEIR_FEED=ids -- --pcap=host:eth0
until_true 'Suricata to read the feed' reads_feed 1
"$weir" block --from "$scratch/ids/eve.json" --follow --feed ids --socket "$scratch/run/weir.sock" \
    >"$scratch/block.log" 2>&1 &
block_pid=$!
send_trace
settle ids
# `weir block` prints what it has blocked.
until_true 'the flow to be blocked' grep -q 40007 "$scratch/block.log"
send_trace
sleep 1
blocked=$("$weir" status --json --socket "$scratch/run/weir.sock" | jq '[.feeds[].ledger.blocked] | add')
[[ $blocked -eq $of_flow && $of_flow -gt 0 ]] || die "$blocked frames were blocked, and the flow has $of_flow"
frames=$((2 * frames - of_flow)) expect_alert ids
end "$block_pid"
block_pid=
say "ids: the host left out the $of_flow frames of the flow that raised the alert"
