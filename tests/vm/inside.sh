#!/bin/sh
# Runs in a guest of tests/vm.sh: starts a broker, and applications that read the host's feeds.
set -eu

fail() {
    echo "error: $*"
    cat /tmp/*.err 2>/dev/null || true
    exit 1
}
within() { # SECONDS COMMAND...
    left=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || fail "waited in vain for: $*"
        sleep 0.1
    done
}
broker() {
    weir guest 2>>/tmp/guest.err &
    broker_pid=$!
}
reads() { # NAME ARGUMENTS...: a capture of the host's source
    name=$1
    shift
    weir capture host:lan --json "$@" >"/tmp/$name.json" 2>"/tmp/$name.err" &
}
# Waits until the capture's feed is open at the host.
is_open() { within 20 grep -q ' host at tc: ' "/tmp/$1.err"; }
# The counts of a capture: offered, filtered, captured, delivered, lapped.
counts() { jq -c '[.offered, .filtered, .captured, .delivered, .lapped, .drops.relay, .unexplained]' "/tmp/$1.json"; }
expect() { # NAME COUNTS
    [ "$(counts "$1")" = "$2" ] || fail "$1: $(counts "$1") and not $2"
    echo "ok      $1: $2"
}
devices() { [ "$(grep -l 0x1110 /sys/bus/pci/devices/*/device 2>/dev/null | wc -l)" -eq "$1" ]; }

# tcpdump needs an entry for the user that it changes to.
echo 'root:x:0:0::/root:/bin/sh' >/etc/passwd
modprobe virtio_pci
modprobe virtio_console
broker
within 10 test -S /run/weir/weir.sock
# For this guest, a source that the host's file does not allow it does not exist.
within 10 grep -q 'serving lan of the host' /tmp/guest.err
if weir capture host:hidden --frames 1 2>/tmp/hidden.err; then fail 'a hidden source can be read'; fi
devices 0 || fail 'there are devices before anybody reads'

# Four readers at a time: all frames, a filter that acts at the host, half of the flows, and an unchanged tcpdump.
reads all --frames 2000
all=$!
reads some --filter 'udp src port 9'
some=$!
weir capture 'host:lan@1/2' --json >/tmp/half.json 2>/tmp/half.err &
half=$!
LD_PRELOAD=/bin/libweirpcap.so tcpdump -Z root -ni host:lan -c 2000 -w /out/host.pcap udp 2>/tmp/tcpdump.err &
dump=$!
echo 'WAITS four'
wait "$all" || fail 'the reader of everything'
wait "$dump" || fail 'tcpdump'
# All frames have come: the other two, which would go on, are ended.
kill -TERM "$some" "$half"
wait "$some" || fail 'the reader with a filter'
wait "$half" || fail 'the reader of a half'
expect all '[2000,0,2000,2000,0,0,0]'
[ "$(jq -c '[.delivered == .captured, .offered == .filtered + .captured, .lapped, .drops.relay]' /tmp/half.json)" = '[true,true,0,0]' ] ||
    fail "half: $(counts half)"
frames=$(tcpdump -Z root -nr /out/host.pcap 2>/dev/null | wc -l)
[ "$frames" -eq 2000 ] || fail "tcpdump has $frames frames"
echo "ok      tcpdump: 2000 frames"

within 20 devices 0
echo 'ok      the devices are gone after the last feed'
reads again --frames 1000
again=$!
is_open again
echo 'WAITS again'
wait "$again" || fail 'the reader behind an unplugging'
expect again '[1000,0,1000,1000,0,0,0]'

# The broker is killed, and another one is started.
reads broker --follow --frames 1000
reader=$!
is_open broker
echo 'WAITS broker'
# It prints how many frames it has.
within 20 grep -q 'captured 500 ' /tmp/broker.err
kill -KILL "$broker_pid"
broker
within 20 grep -q 'captured from here on' /tmp/broker.err
echo 'WAITS next'
wait "$reader" || fail 'the reader whose broker was killed'
[ "$(jq -c '[.delivered, .sources[0].lives, .unexplained]' /tmp/broker.json)" = '[1000,2,0]' ] || fail "broker: $(cat /tmp/broker.json)"
echo 'ok      a broker that is killed is read on from'

# The host's daemon is killed.
reads daemon --follow --frames 1000
reader=$!
is_open daemon
echo 'WAITS daemon'
within 60 grep -q 'captured from here on' /tmp/daemon.err
echo 'WAITS successor'
wait "$reader" || fail 'the reader whose daemon was killed'
[ "$(jq -c '[.delivered, .sources[0].lives, .unexplained]' /tmp/daemon.json)" = '[1000,2,0]' ] || fail "daemon: $(cat /tmp/daemon.json)"
echo 'ok      a daemon that is killed is read on from'
kill -TERM "$broker_pid"
wait "$broker_pid" || fail 'the broker'
