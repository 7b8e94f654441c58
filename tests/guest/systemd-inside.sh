#!/usr/bin/env bash
# The part of systemd.sh that runs in the guest, as root: installs /check/weir.deb, runs the daemon under systemd,
# purges the package. Clients run as nobody, without capabilities. It sources nothing except systemd-guest.sh.
set -euo pipefail

nobody=65534
limit_s=60

die() {
    printf 'error: under systemd: %s\n' "$*"
    journalctl -u weir -u weir-guest -o cat --no-pager | tail -n 40
    tail -n 20 /tmp/*.talk 2>/dev/null || true
    exit 1
}
# For commands whose status is not checked.
trap 'die "line $LINENO: $BASH_COMMAND"' ERR

begin=$SECONDS
done_with() { printf 'ok  %3d s  %s\n' $((SECONDS - begin)) "$*"; }

until_true() { # WHAT COMMAND...
    local what=$1 end=$((SECONDS + limit_s))
    shift
    until "$@" >/dev/null 2>&1; do
        [[ $SECONDS -lt $end ]] || die "not within $limit_s s: $what"
        sleep 0.1
    done
}
property() { systemctl show --value -p "$1" weir; }
# Every path, except those of dpkg, of the kernel, and logs.
paths() {
    find / -xdev \( -path /check -o -path /proc -o -path /dev -o -path /var/cache -o -path /var/log \
        -o -path /var/lib/dpkg -o -path /tmp -o -path /var/tmp \) -prune -o -print | sort
}

# `exec`, so that signals reach the client itself.
as_nobody() { exec setpriv --reuid $nobody --regid $nobody --clear-groups --inh-caps=-all "$@"; }
declare -A client
start() { # NAME COMMAND...: a client, which reads when this returns
    local name=$1 there
    shift
    there=$(readers)
    "$@" >"/tmp/$name.json" 2>"/tmp/$name.talk" &
    client[$name]=$!
    until_true "$name reads" has_readers $((there + 1))
}
readers() { weir status --json | jq '.clients | length'; }
has_readers() { [[ $(readers) == "$1" ]]; }
# Frames of the client's newest feed.
newest_offered() { weir status --json | jq '.clients | max_by(.number) | .ledger.offered'; }
has_offered() { [[ $(newest_offered) -ge $1 ]]; }
send() { # FRAMES [RATE]: to near0, whose other end is in a namespace
    local said
    said=$(ip netns exec far weir gen far0 --af-packet --frames "$1" --rate "${2:-5kpps}" --json 2>/tmp/gen.talk)
    [[ $(jq .sent <<<"$said") == "$1" ]] || die "sent other than $1 frames: $said"
}
finish() { # NAME JQ-CONDITION: it ends by Ctrl-C, its ledger closes, and the condition holds
    local name=$1 status=0
    kill -INT "${client[$name]}"
    wait "${client[$name]}" || status=$?
    [[ $status -eq 0 ]] || die "$name ended with $status"
    jq -e ".unexplained == 0 and .offered == .filtered + .captured + ([.drops[]] | add // 0)
        and .captured == .delivered + .lapped and ($2)" "/tmp/$name.json" >/dev/null ||
        die "$name: not ($2), or the ledger does not close: $(cat "/tmp/$name.json")"
}
# The number of our filters that are attached to near0, on both sides.
filters() { for side in ingress egress; do tc filter show dev near0 $side; done | grep -c ' weir_tc_' || true; }
programs() { bpftool prog list | grep -c ' name weir_' || true; }
is_clean() { [[ $(filters) == 0 && $(programs) == 0 ]]; }
drop_in() { # NAME, lines from standard input
    mkdir -p /etc/systemd/system/weir.service.d
    cat >"/etc/systemd/system/weir.service.d/$1.conf"
    systemctl daemon-reload
}
serves() { [[ $(property ActiveState) == active && $(property StatusText) == *"serving $1"* ]]; }
is_another() { [[ $(property MainPID) != "$1" && $(property ActiveState) == active ]]; }

# 1. The package: a user and a file, the unit neither enabled nor started.
paths >/check/before
dpkg -i /check/weir.deb >/check/dpkg 2>&1 || die "$(cat /check/dpkg)"
[[ $(systemctl is-enabled weir || true) == disabled ]] || die 'installing it enables the unit'
[[ $(systemctl is-active weir || true) == inactive ]] || die 'installing it starts the daemon'
[[ $(stat -c '%a %U:%G' /etc/weir/weir.toml) == '640 root:weir' ]] || die "$(ls -l /etc/weir/weir.toml)"
dpkg --verify weir || die 'the files are not those that the package names'
said=$(systemd-analyze --man=no verify weir.service 2>&1)
[[ -z $said ]] || die "systemd-analyze verify: $said"
# In tenths. The figure rises if the unit loses a line or gets a capability.
said=$(systemd-analyze --no-pager --threshold=28 security weir.service) || die "systemd-analyze security: $said"
grep 'Overall exposure' <<<"$said"
systemctl start weir
serves 'no source' || die 'what the package brings allows something'
systemctl stop weir
done_with 'the package brings a unit that is off, and a file that allows nothing'

# 2. The daemon: its user, its rights, its sandbox.
# Without IPv6 the kernel itself sends nothing.
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
ip netns add far
ip netns exec far bash -c 'echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'
ip link add near0 type veth peer name far0 netns far
ip link set near0 up
ip -n far link set far0 up
for engine in bpf af_packet pcap; do
    printf '[sources.%s]\nsource = "near0"\nengine = "%s"\nusers = [0, %d]\nring_mib = 16\n' $engine $engine $nobody
done >/etc/weir/weir.toml
systemctl enable --now weir 2>/dev/null
pid=$(property MainPID)
# CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON, CAP_BPF.
for set in Prm Eff Bnd Amb; do
    grep -Eqx "Cap$set:\s+000000c000003000" "/proc/$pid/status" || die "$(grep ^Cap "/proc/$pid/status")"
done
grep -Eqx 'NoNewPrivs:\s+1' "/proc/$pid/status" || die 'it could gain privileges'
grep -Eqx 'Seccomp:\s+2' "/proc/$pid/status" || die 'no filter of system calls'
[[ $(stat -c %U "/proc/$pid") == weir ]] || die "it runs as $(stat -c %U "/proc/$pid")"
[[ $(stat -c '%a %U' /run/weir) == '755 weir' ]] || die "$(ls -ld /run/weir)"
done_with 'runs as user weir with four capabilities'

# 3. Every engine captures every frame, with filters that are compiled by a child in a sandbox of its own.
for engine in bpf af_packet pcap; do
    start "$engine" as_nobody weir capture host:$engine --filter udp --json
    start "$engine-none" as_nobody weir capture host:$engine --filter ip6 --json
    grep -q "captures with $engine" "/tmp/$engine.talk" || die "not by $engine: $(cat "/tmp/$engine.talk")"
    send 2000
    until_true "$engine counts the frames" has_offered 2000
    finish $engine '.offered == 2000 and .delivered == 2000'
    # /proc shows that the client cannot load BPF programs, so it may map the capture's own rings.
    grep -q 'copied into sealed memory' "/tmp/$engine.talk" && die "$engine: $(cat "/tmp/$engine.talk")"
    finish $engine-none '.offered == 2000 and .filtered == 2000'
    until_true 'the feeds are closed' has_readers 0
    done_with "nobody reads every frame by $engine"
done
# It takes frames away from the stack: a file without consume = true is refused, and changes nothing.
cp /etc/weir/weir.toml /check/weir.toml
printf '[sources.af_xdp]\nsource = "near0"\nengine = "af_xdp"\nusers = [%d]\n' $nobody >>/etc/weir/weir.toml
systemctl reload weir
has_refused_af_xdp() { journalctl --no-pager -u weir | grep -q 'sources.af_xdp: engine = "af_xdp" takes .*consume'; }
until_true 'the file is refused' has_refused_af_xdp
serves 'af_packet, bpf, pcap' || die 'the refused file is in force'
cp /check/weir.toml /etc/weir/weir.toml
done_with 'af_xdp without consume is refused: it would take the frames away'

# AppArmor: Debian's profile of tcpdump keeps it from a feed, and lets it read with the lines of docs/tools.md.
dpkg -i /check/libweir1.deb >/check/dpkg 2>&1 || die "$(cat /check/dpkg)"
profile=/etc/apparmor.d/usr.bin.tcpdump
override=/etc/apparmor.d/local/usr.bin.tcpdump
cp "$override" /check/override
tcpdump_of_root() { exec weir run -- tcpdump -nc 100 -i host:bpf udp; }
denials() { dmesg | grep -c 'apparmor="DENIED".*profile="tcpdump"' || true; }
apparmor_parser -r "$profile"
grep -qx 'tcpdump (enforce)' /sys/kernel/security/apparmor/profiles || die 'the profile of tcpdump is not enforced'
dmesg --clear
said=$(tcpdump_of_root 2>&1) && die "the profile allows it without the lines: $said"
[[ $(denials) -gt 0 ]] || die "it fails for another reason: $said"
# shellcheck disable=SC2016  # sed's own
sed -n '/^## AppArmor/,$ { /^```$/,/^```$/ { /^```$/!p } }' /check/tools.md >"$override"
grep -q weir "$override" || die 'docs/tools.md has no lines for the profile'
apparmor_parser -r "$profile"
dmesg --clear
start apparmor tcpdump_of_root
send 100
wait "${client[apparmor]}" || die "tcpdump ended with $?: $(cat /tmp/apparmor.talk)"
grep -qx '100 packets captured' /tmp/apparmor.talk || die "$(cat /tmp/apparmor.talk)"
[[ $(denials) == 0 ]] || die "denied in spite of the lines: $(dmesg | grep DENIED)"
apparmor_parser -R "$profile"
cp /check/override "$override"
until_true 'the feed is closed' has_readers 0
dpkg --purge libweir1 >/check/dpkg 2>&1 || die "$(cat /check/dpkg)"
done_with "tcpdump under Debian's profile reads with the lines of docs/tools.md, and not without"

# 4. Reload: the feed that stays misses nothing, the new file is in force.
start stays as_nobody weir capture host:bpf --json
send 6000 1kpps &
sender=$!
until_true 'frames come' has_offered 500
printf '[sources.more]\nsource = "near0"\nusers = [%d]\n' $nobody >>/etc/weir/weir.toml
systemctl reload weir
until_true 'the new file is in force' serves 'af_packet, bpf, more, pcap'
[[ $(newest_offered) -lt 6000 ]] || die 'the reload came after the last frame'
wait $sender
until_true 'all frames' has_offered 6000
[[ $(property MainPID) == "$pid" ]] || die 'a reload started it anew'
finish stays '.offered == 6000 and .delivered == 6000 and .sources[0].lives == 1'
done_with 'a reload loses no frame'

# 5. Watchdog, SIGKILL, upgrade: each time a client reads on that has the socket's folder mounted, as containers have.
# The time of the watchdog is shorter than the unit's, but longer than the verifier takes for a program on a slow guest,
# because the daemon cannot report to the watchdog while a source opens.
drop_in watchdog <<<$'[Service]\nWatchdogSec=10'
systemctl restart weir
# shellcheck disable=SC2016  # for the inner shell to expand
start lives unshare --mount bash -c 'mount --bind /run/weir /mnt && exec setpriv --reuid $0 --regid $0 --clear-groups \
    --inh-caps=-all weir capture host:bpf --socket /mnt/weir.sock --json' $nobody
send 1000
until_true 'frames of the first life' has_offered 1000
for how in STOP KILL upgrade; do
    pid=$(property MainPID)
    restarts=$(property NRestarts)
    case $how in
    upgrade) dpkg -i /check/weir.deb >/check/dpkg 2>&1 || die "$(cat /check/dpkg)" ;;
    *) kill -$how "$pid" ;;
    esac
    until_true "another daemon after $how" is_another "$pid"
    if [[ $how != upgrade ]]; then
        [[ $(property NRestarts) == $((restarts + 1)) ]] || die "$how: started $(property NRestarts) times"
    fi
    until_true "the client is back after $how" has_readers 1
    # The filters of the killed daemon are gone: it had recorded them in the folder that systemd keeps.
    [[ $(filters) == 2 ]] || die "after $how, near0 has $(filters) filters"
    send 1000
    until_true "frames after $how" has_offered 1000
    done_with "$how: systemd has another daemon running, and the client reads on"
done
journalctl -u weir -o cat --no-pager >/check/journal
grep -q 'Watchdog timeout' /check/journal || die 'the watchdog did not end the daemon that hung'
[[ $(stat -c '%a %U:%G' /etc/weir/weir.toml) == '640 root:weir' ]] || die "upgraded: $(ls -l /etc/weir/weir.toml)"

# 6. Stop: nothing stays attached, the client's ledger closes.
systemctl stop weir
[[ $(property Result) == success ]] || die "stopped: $(property Result)"
is_clean || die "stopped, and $(filters) filters and $(programs) programs are there"
[[ ! -e /run/weir/weir.sock ]] || die 'stopped, and the socket is there'
finish lives '.delivered == 4000 and .sources[0].lives == 4'
done_with 'a stop leaves nothing attached; four lives, and the ledger closes'

# 7. Drop-ins that docs/serve.md names: only a group may connect, other network namespaces, metrics on this machine.
rm -r /etc/systemd/system/weir.service.d
drop_in group <<<$'[Service]\nRuntimeDirectoryMode=0750'
drop_in netns <<'END'
[Service]
AmbientCapabilities=CAP_SYS_ADMIN CAP_SYS_PTRACE
CapabilityBoundingSet=CAP_SYS_ADMIN CAP_SYS_PTRACE
END
drop_in metrics <<'END'
[Service]
ExecStart=
ExecStart=/usr/bin/weir serve --metrics 127.0.0.1:9100
END
printf '[sources.other]\nsource = "netns:late/late0"\nusers = [%d]\n' $nobody >/etc/weir/weir.toml
systemctl start weir
[[ $(stat -c '%a' /run/weir) == 750 ]] || die "$(ls -ld /run/weir)"
# This namespace is made after the daemon has set up its mounts.
ip netns add late
ip -n late link add late0 type veth peer name more0
ip -n late link set late0 up
said=$(as_nobody weir capture host:other --frames 1 --json 2>&1) && die 'without the group nobody can connect'
[[ $said == *'ermission denied'* ]] || die "without the group: $said"
start group setpriv --reuid $nobody --regid $nobody --groups weir --inh-caps=-all weir capture host:other --json
finish group '.offered == 0'
# A process of root in that namespace.
ip netns exec late sleep infinity &
sleeper=$!
printf '[sources.process]\nsource = "netns:%d/late0"\nusers = [%d]\n' "$sleeper" $nobody >/etc/weir/weir.toml
systemctl reload weir
until_true 'the new file is in force' serves 'process'
start process setpriv --reuid $nobody --regid $nobody --groups weir --inh-caps=-all weir capture host:process --json
finish process '.offered == 0'
kill "$sleeper"
ip link set lo up
exec 3<>/dev/tcp/127.0.0.1/9100
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
said=$(cat <&3)
exec 3>&-
[[ $said == *' 200 '*weir_* ]] || die "metrics: $said"
systemctl stop weir
rm -r /etc/systemd/system/weir.service.d
systemctl daemon-reload
done_with 'drop-ins: a group, other network namespaces, metrics'

# 8. The example that captures without the daemon.
cp /usr/share/doc/weir/examples/weir-capture@.service /etc/systemd/system/
systemctl daemon-reload
said=$(systemd-analyze --man=no verify weir-capture@near0.service 2>&1)
[[ -z $said ]] || die "systemd-analyze verify: $said"
systemctl start weir-capture@near0
captures() { [[ $(filters) == 2 && $(journalctl -u weir-capture@near0 -o cat --no-pager) == *'weir: near0: bpf'* ]]; }
until_true 'it captures' captures
send 500
systemctl stop weir-capture@near0
[[ $(systemctl show --value -p Result weir-capture@near0) == success ]] ||
    die "$(journalctl -u weir-capture@near0 -o cat --no-pager)"
is_clean || die 'a capture that was stopped left something attached'
read=$(weir capture file:/var/lib/weir/near0.pcapng --json 2>/tmp/read.talk)
[[ $(jq .delivered <<<"$read") == 500 ]] || die "its file: $read"
rm -r /var/lib/weir /etc/systemd/system/weir-capture@.service
systemctl daemon-reload
done_with 'weir-capture@ writes every frame'

# 9. weir-guest.service, with feeds of the host.
# shellcheck source=tests/guest/systemd-guest.sh
source /check/systemd-guest.sh

# 10. Purge, while it runs and is enabled.
systemctl start weir
pid=$(property MainPID)
dpkg --purge weir >/check/dpkg 2>&1 || die "$(cat /check/dpkg)"
[[ ! -e /proc/$pid ]] || die 'purged, and it runs'
[[ $(property LoadState) == not-found ]] || die "purged, and systemd has a unit: $(property LoadState)"
[[ ! -e /run/weir ]] || die 'purged, and /run/weir is there'
paths >/check/after
stayed=$(comm -13 /check/before /check/after)
[[ -z $stayed ]] || die "not there before the package was installed: $stayed"
getent passwd weir >/dev/null || die 'purged, and the user is gone: another could get its number'
done_with 'a purge leaves nothing but the user'
