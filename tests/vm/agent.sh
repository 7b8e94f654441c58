#!/bin/sh
# Runs in the guests of tests/vm: carries out, one after the other, the commands that come from the host over the second
# serial port (machine.sh). All run in this shell, so later ones can use what earlier ones have defined or started.

modprobe virtio_pci
modprobe virtio_console
# tcpdump needs an entry for the user that it changes to.
echo 'root:x:0:0::/root:/bin/sh' >/etc/passwd

within() { # SECONDS COMMAND...
    left=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || {
            echo "waited in vain for: $*"
            return 1
        }
        sleep 0.1
    done
}
# Without colours.
jq() { command jq -M "$@"; }
# Starts a program, whose output goes to /tmp/NAME.json and /tmp/NAME.err, and keeps its id as $pid_NAME.
start() { # NAME COMMAND...
    name=$1
    shift
    rm -f "/tmp/$name.json" "/tmp/$name.err"
    "$@" </dev/null >"/tmp/$name.json" 2>"/tmp/$name.err" 3>&- &
    eval "pid_$name=$!"
}
# Waits until a program has ended, and returns its exit status.
ended() { # NAME
    eval "wait \$pid_$1"
}
killed() { # NAME
    eval "kill -KILL \$pid_$1; wait \$pid_$1"
    return 0
}
# A broker, with the options of `weir guest`.
start_broker() {
    weir guest "$@" </dev/null >>/tmp/guest.err 2>&1 3>&- &
    # shellcheck disable=SC2034  # for commands of the host
    pid_broker=$!
}
broker() {
    # Empty the log, so that only messages of this broker count. An earlier one that was killed has left its socket, too.
    : >/tmp/guest.err
    start_broker "$@"
    within 20 test -S /run/weir/weir.sock && within 20 grep -q 'serving .* of the host' /tmp/guest.err
}
# Starts a capture of the host's source; its feed is open at the host when this returns.
reads() { # NAME SOURCE ARGUMENTS...
    name=$1 source=$2
    shift 2
    start "$name" weir capture "$source" --json "$@"
    is_open "$name"
}
is_open() { # NAME
    within 20 grep -q ' host at tc: ' "/tmp/$1.err"
}
# The counts of a capture, summed over its sources and lives.
counts() { # NAME
    jq -c '[.offered, .filtered, .captured, .delivered, .lapped, .drops.relay, .unexplained]' "/tmp/$1.json"
}
devices() { # HOW-MANY
    [ "$(grep -l 0x1110 /sys/bus/pci/devices/*/device 2>/dev/null | wc -l)" -eq "$1" ]
}

stty -F /dev/ttyS1 raw -echo 2>/dev/null || stty raw -echo </dev/ttyS1
exec 3<>/dev/ttyS1
echo READY >&3
while read -r id command <&3; do
    echo "BEGIN $id" >&3
    eval "$command" >&3 2>&1
    echo "END $id $?" >&3
done
