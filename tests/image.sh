#!/usr/bin/env bash
# Makes the container image, twice with the same bytes, and runs it by a Docker daemon of its own, in a network
# namespace of its own: clients without rights read what a daemon on the host captures, and then what a daemon in
# a container captures, with the rights and the configuration file of the Kubernetes manifest; then the same by
# docker-compose.
set -euo pipefail
# shellcheck source=tests/live.sh
source "$(dirname "$0")/live.sh"
cd "$root"

frames=20000
scratch=$(mktemp -d)
daemon_pid=
rx=weir-image-rx-$$
tx=weir-image-tx-$$

# shellcheck disable=SC2317  # by the trap
tidy() {
    end "$daemon_pid"
    stop_dockerd
    remove_namespaces "$rx" "$tx"
    rm -rf "$scratch"
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

begin=$SECONDS
tarball=$(WEIR_DIST=$scratch/dist packaging/image/build.sh)
say "built in $((SECONDS - begin)) s"
again=$(WEIR_DIST=$scratch/again packaging/image/build.sh 2>/dev/null)
cmp "$tarball" "$again" || die 'the same program, packed twice, gives other bytes'

if [[ $EUID -ne 0 ]]; then
    skip root_image 'containers that capture need root'
    exit 0
fi

# The tree of the image: for the host's part, and for runc, which makes mount points in it.
mkdir "$scratch/root"
tar -xOf "$tarball" layer.tar | tar -x -C "$scratch/root"
weir=$scratch/root/weir
make_link "$rx" "$tx"

serve() { # LOG COMMAND...: a daemon on the host's part, in the network namespace
    local log=$1
    shift
    printf '[sources.lan]\nsource = "eth0"\nusers = [0, 65532, 65534]\nring_mib = 16\n' >"$scratch/host.toml"
    ip netns exec "$rx" "$@" "$weir" serve --config "$scratch/host.toml" --socket "$run/weir.sock" >"$log" 2>&1 &
    daemon_pid=$!
    until_true 'the daemon' grep -q 'weir: serving ' "$log"
}

say '=== a daemon that does not see the processes of its clients'
run=$scratch/run
mkdir -m 755 "$run"
# As in a container: to the daemon, the client's process id is 0.
serve "$scratch/apart.log" unshare --pid --fork --kill-child
said=$("$weir" status --json --socket "$run/weir.sock") || die "it refuses clients: $(cat "$scratch/apart.log")"
[[ $(jq -r '.sources[].source' <<<"$said") == lan ]] || die "it serves something else: $said"
# `unshare` itself takes no notice of signals.
end "$(pgrep --parent "$daemon_pid")"
end "$daemon_pid"
daemon_pid=

for tool in dockerd docker runc docker-compose; do
    command -v "$tool" >/dev/null || {
        skip docker_image "$tool is missing"
        exit 0
    }
done

start_dockerd "$rx" || {
    skip docker_image "dockerd does not run here: $(tail -n 1 "$scratch/dockerd.log")"
    exit 0
}
docker load --quiet --input "$tarball" >&2

unprivileged=(--network=none --read-only --cap-drop=ALL --security-opt=no-new-privileges)

client() { # NAME [docker run's options] -- ARGUMENTS: starts one, and waits until it reads
    local name=$1 options=()
    shift
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    docker run --detach --name "$name" "${unprivileged[@]}" "${options[@]}" --volume "$run:/run/weir:ro" \
        weir "$@" >/dev/null
    until_true "the client $name" reads_or_ended "$name"
}
reads_or_ended() { docker logs "$1" 2>&1 | grep -q '^weir: .*: '; }

# The report of a client that ends by itself (--frames): every frame, none lost, and the ledger closes.
expect_every_frame() { # NAME
    local code report
    code=$(timeout "$limit_s" docker wait "$1") || die "$1 did not get every frame within $limit_s s"
    report=$(docker logs "$1" 2>/dev/null)
    if [[ $code -ne 0 ]] || ! jq -e --argjson frames "$frames" '.delivered == $frames and .lapped == 0
        and ([.drops[]] | add // 0) == 0 and .unexplained == 0' <<<"$report" >/dev/null; then
        docker logs "$1" >&2
        die "$1: exit status $code, and not every frame"
    fi
    docker rm "$1" >/dev/null
    say "$1: $frames frames, every one"
}
expect_refused() { # TEXT ARGUMENTS... of docker run
    local text=$1 said code=0
    shift
    said=$(timeout "$limit_s" docker run --rm "${unprivileged[@]}" "$@" 2>&1) || code=$?
    [[ $code -eq 2 && $said == *"$text"* ]] || die "exit status $code, and not '$text': $said"
}
generate() {
    ip netns exec "$tx" "$weir" gen eth0 --frames "$frames" --rate 100kpps --flows 100 >"$scratch/gen.log" 2>&1 ||
        die "weir gen: $(cat "$scratch/gen.log")"
}

say '=== the image alone'
# Its filter compiler is a child in a sandbox, for which it starts itself again.
timeout "$limit_s" docker run --rm "${unprivileged[@]}" weir capture gen:size=64 --frames 10 --json \
    --filter 'udp and not host 203.0.113.1' 2>/dev/null |
    jq -e '.delivered == 10' >/dev/null || die 'it does not capture gen: with a filter'
timeout "$limit_s" docker run --rm "${unprivileged[@]}" weir capture gen:size=64 --frames 10 --write - \
    2>/dev/null >"$scratch/ten.pcapng"
timeout "$limit_s" docker run --rm "${unprivileged[@]}" --volume "$scratch/ten.pcapng:/ten.pcapng:ro" --user 0 weir \
    capture file:/ten.pcapng --filter udp --json 2>/dev/null | jq -e '.delivered == 10' >/dev/null ||
    die 'it does not read a file with a filter'
expect_refused "unknown port 'http'" weir capture gen:size=64 --frames 1 --filter 'tcp port http'
expect_refused "unknown host 'example.org'" weir capture gen:size=64 --frames 1 --filter 'host example.org'

say '=== clients in containers, the daemon on the host'
serve "$scratch/host.log" env
client nobody --user 65534:65534 -- capture host:lan --frames "$frames" --json
client image-user -- capture host:lan --frames "$frames" --filter 'udp and not host 203.0.113.1' --json
expect_refused 'lan' --user 1234:1234 --volume "$run:/run/weir:ro" weir capture host:lan
generate
expect_every_frame nobody
expect_every_frame image-user
end "$daemon_pid"
daemon_pid=

say '=== the daemon in a container, with the rights and the file of packaging/kubernetes'
# By runc, as a kubelet has it run: older Docker daemons know no CAP_BPF.
python=/usr/bin/python3
$python tests/manifests.py weir.toml >"$scratch/weir.toml"
rights=$($python tests/manifests.py rights | jq -R '"CAP_" + .' | jq -s .)
mkdir "$scratch/pod"
(cd "$scratch/pod" && runc spec)
jq --argjson rights "$rights" --arg scratch "$scratch" --arg namespace "/run/netns/$rx" '
    .root = {path: ($scratch + "/root"), readonly: true}
    | .process.args = ["/weir", "serve", "--config", "/etc/weir/weir.toml", "--socket", "/run/weir/weir.sock"]
    | .process.terminal = false
    | .process.user = {uid: 0, gid: 0}
    | .process.capabilities = {bounding: $rights, effective: $rights, permitted: $rights}
    | .process.noNewPrivileges = true
    | .linux.namespaces |= map(if .type == "network" then .path = $namespace else . end)
    | .mounts += [
        {destination: "/etc/weir/weir.toml", type: "bind", source: ($scratch + "/weir.toml"), options: ["bind", "ro"]},
        {destination: "/run/weir", type: "bind", source: ($scratch + "/run"), options: ["bind", "rw"]}
    ]' "$scratch/pod/config.json" >"$scratch/pod/changed.json"
mv "$scratch/pod/changed.json" "$scratch/pod/config.json"
pod=(runc --root "$scratch/runc")
"${pod[@]}" run --bundle "$scratch/pod" "weir-pod-$$" </dev/null >"$scratch/pod.log" 2>&1 &
daemon_pid=$!
until_true 'the probe of the manifest' "${pod[@]}" exec "weir-pod-$$" \
    /weir status --socket /run/weir/weir.sock
client pod -- capture host:eth0 --frames "$frames" --json
said=$(docker logs pod 2>&1)
[[ $said == *'it captures with bpf'* ]] || die "the manifest's rights are not enough for the engine bpf: $said"
generate
expect_every_frame pod
end "$daemon_pid"
daemon_pid=

say '=== docker-compose'
export WEIR_TOML=$scratch/weir.toml WEIR_RUN=$run COMPOSE_PROJECT_NAME=weir-image-$$
docker-compose --file packaging/compose.yaml up --detach >"$scratch/compose.log" 2>&1 ||
    die "docker-compose: $(cat "$scratch/compose.log")"
service() { docker-compose --file packaging/compose.yaml ps --quiet "$1"; }
count=$(service count) print=$(service print)
for id in "$count" "$print"; do until_true 'the clients of compose.yaml' reads_or_ended "$id"; done
generate
printed_all() { [[ $(docker logs "$print" 2>/dev/null | wc -l) -eq $frames ]]; }
until_true "$frames lines of the client that prints" printed_all
docker kill --signal=INT "$count" >/dev/null
docker rename "$count" compose-count
expect_every_frame compose-count
docker-compose --file packaging/compose.yaml down >>"$scratch/compose.log" 2>&1
