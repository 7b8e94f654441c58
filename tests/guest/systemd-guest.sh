# shellcheck shell=bash
# shellcheck disable=SC2154  # $nobody is of the script that sources this
# Sourced by systemd-inside.sh: tests weir-guest.service, which offers the feeds of a daemon on the host (systemd.sh).

guest_property() { systemctl show --value -p "$1" weir-guest; }
guest_serves() { [[ $(guest_property ActiveState) == active && $(guest_property StatusText) == "serving made"* ]]; }
# Like as_nobody.
of_group() { exec setpriv --reuid "$nobody" --regid "$nobody" --groups weir --inh-caps=-all "$@"; }
# Processes that have the device's memory mapped, or the broker's thread for it.
region_is_mapped() { grep -lq resource2 /proc/[0-9]*/maps 2>/dev/null; }

[[ $(systemctl is-enabled weir-guest || true) == disabled ]] || die 'installing the package enables weir-guest'
said=$(systemd-analyze --man=no verify weir-guest.service 2>&1)
[[ -z $said ]] || die "systemd-analyze verify: $said"
# It runs as root, and has CAP_SYS_ADMIN for the file `enable` of devices. If a line of the unit is lost, the figure rises.
said=$(systemd-analyze --no-pager --threshold=21 security weir-guest.service) || die "systemd-analyze security: $said"
grep 'Overall exposure' <<<"$said"

# Without a port it is not started, which is not a failure.
mkdir -p /etc/systemd/system/weir-guest.service.d
printf '[Unit]\nConditionPathExists=/dev/virtio-ports/none\n' >/etc/systemd/system/weir-guest.service.d/none.conf
systemctl daemon-reload
systemctl start weir-guest
[[ $(guest_property ActiveState) == inactive && $(guest_property Result) == success ]] || die 'it starts without a port'
rm -r /etc/systemd/system/weir-guest.service.d
systemctl daemon-reload

# Enabled, it starts when the port comes.
systemctl enable weir-guest 2>/dev/null
rmmod virtio_console
udevadm control --reload
modprobe virtio_console
until_true 'weir-guest is started by the port' guest_serves
[[ $(stat -c '%a %U' /run/weir) == '755 root' ]] || die "$(ls -ld /run/weir)"
pid=$(guest_property MainPID)
grep -Eqx 'CapBnd:\s+0000000000200000' "/proc/$pid/status" || die "$(grep ^Cap "/proc/$pid/status")"
grep -Eqx 'Seccomp:\s+2' "/proc/$pid/status" || die 'no filter of system calls'

# Group weir reads, others do not.
said=$(as_nobody weir capture host:made --frames 1 2>&1) && die 'nobody can read what the host captures'
[[ $said == *made* ]] || die "nobody hears: $said"
(of_group weir capture host:made --filter udp --frames 500 --json >/tmp/made.json 2>/tmp/made.talk) ||
    die "group weir cannot read: $(cat /tmp/made.talk)"
[[ $(jq .delivered /tmp/made.json) == 500 ]] || die "$(cat /tmp/made.json)"
grep -h 'memory is there' <(journalctl -u weir-guest -o cat --no-pager)
# The port is in use: the error of another broker says by which process.
install -d /tmp/other
said=$(weir guest --socket /tmp/other/weir.sock 2>&1) && die 'two brokers have one port'
[[ $said == *'another program has it open'*'weir-guest'* ]] || die "the second broker says: $said"
done_with 'weir-guest starts with its port, and the group weir reads what the host captures'

# The broker is stopped: its reader goes on with the next one.
of_group weir capture host:made --follow --json >/tmp/follow.json 2>/tmp/follow.talk &
reader=$!
until_true 'a reader' grep -q 'made: host' /tmp/follow.talk
systemctl restart weir-guest
[[ $(guest_property Result) == success ]] || die "it ended with $(guest_property Result)"
until_true 'the reader goes on' grep -q 'captured from here on' /tmp/follow.talk
kill -INT $reader
wait $reader || die "the reader ended with $?: $(cat /tmp/follow.talk)"
jq -e '.unexplained == 0 and .sources[0].lives == 2' /tmp/follow.json >/dev/null || die "$(cat /tmp/follow.json)"

# The watchdog.
printf '[Service]\nWatchdogSec=5\n' | { mkdir -p /etc/systemd/system/weir-guest.service.d && cat >/etc/systemd/system/weir-guest.service.d/w.conf; }
systemctl daemon-reload
systemctl restart weir-guest
until_true 'it serves with a shorter watchdog' guest_serves
pid=$(guest_property MainPID)
sleep_is_over() { [[ $(guest_property NRestarts) == 1 ]] && guest_serves; }
kill -STOP "$pid"
until_true 'another one after the watchdog' sleep_is_over
rm -r /etc/systemd/system/weir-guest.service.d
systemctl daemon-reload

# Only one of the two daemons can run.
systemctl start weir
[[ $(guest_property ActiveState) == inactive ]] || die 'both daemons run'
systemctl stop weir
systemctl start weir-guest
until_true 'it serves again' guest_serves
of_group weir capture host:made --json >/tmp/ends.json 2>/tmp/ends.talk &
reader=$!
until_true 'a reader' grep -q 'made: host' /tmp/ends.talk
systemctl stop weir-guest
until_true 'it is told' grep -q 'the daemon has ended; waiting' /tmp/ends.talk
kill -INT $reader
wait $reader || die "a reader ended with $?: $(cat /tmp/ends.talk)"
jq -e '.unexplained == 0' /tmp/ends.json >/dev/null || die "$(cat /tmp/ends.json)"
[[ $(guest_property Result) == success ]] || die "stopped: $(guest_property Result)"
until_true 'nothing of the region is mapped' eval '! region_is_mapped'
systemctl disable weir-guest 2>/dev/null
done_with 'weir-guest restarts, is watched, and gives way to weir'
