#!/bin/sh
# Runs in the guest of tests/vm/vsock.sh: a broker that reaches its host by vsock, and an application.
set -eu

fail() {
    echo "error: $*"
    tail -n 20 /tmp/*.err 2>/dev/null || true
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
    weir guest --vsock 2>>/tmp/guest.err &
    broker_pid=$!
}
reads() { # NAME ARGUMENTS...: a capture of the host's source, which ends by itself
    name=$1
    shift
    weir capture host:lan --json "$@" >"/tmp/$name.json" 2>"/tmp/$name.err" &
    reader=$!
    # Its feed is open at the host.
    within 20 grep -q ' host at tc: ' "/tmp/$name.err"
}
said() { grep -c "$1" /tmp/guest.err || true; }

modprobe virtio_pci
weir guest --vsock 2>/tmp/early.err &
early=$!
within 10 grep -q 'no vsock' /tmp/early.err
kill "$early"
wait "$early" || fail 'a broker without a device'
modprobe vmw_vsock_virtio_transport
broker
within 10 test -S /run/weir/weir.sock
within 10 grep -q 'vsock:5745: the host does not answer' /tmp/guest.err
[ "$(said 'does not answer')" -eq 1 ] || fail 'it is said again and again'
echo 'WAITS host'
within 60 grep -q 'serving lan of the host' /tmp/guest.err

reads all --frames 2000
echo 'WAITS frames'
wait "$reader" || fail 'the reader'
counts=$(jq -c '[.offered, .filtered, .captured, .delivered, .lapped, .drops.relay, .unexplained]' /tmp/all.json)
[ "$counts" = '[2000,0,2000,2000,0,0,0]' ] || fail "$counts"
echo 'ok      2000 frames'

reads broker --follow --frames 1000
echo 'WAITS broker'
# It says how many it has.
within 20 grep -q 'captured 500 ' /tmp/broker.err
kill -KILL "$broker_pid"
broker
within 20 grep -q 'captured from here on' /tmp/broker.err
echo 'WAITS next'
wait "$reader" || fail 'the reader whose broker was killed'
[ "$(jq -c '[.delivered, .sources[0].lives, .unexplained]' /tmp/broker.json)" = '[1000,2,0]' ] || fail "broker: $(cat /tmp/broker.json)"
echo 'ok      a broker that is killed is read on from'

reads daemon --follow --frames 1000
echo 'WAITS daemon'
within 60 grep -q 'captured from here on' /tmp/daemon.err
echo 'WAITS successor'
wait "$reader" || fail 'the reader whose daemon was killed'
[ "$(jq -c '[.delivered, .sources[0].lives, .unexplained]' /tmp/daemon.json)" = '[1000,2,0]' ] || fail "daemon: $(cat /tmp/daemon.json)"
echo 'ok      a daemon that is killed is read on from'
kill -TERM "$broker_pid"
wait "$broker_pid" || fail 'the broker'
