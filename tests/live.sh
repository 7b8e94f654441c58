# shellcheck shell=bash
# shellcheck disable=SC2154  # $scratch is the callers'
# Functions of the scripts that run daemons at the end of a veth and in containers; to be sourced. All files are in the
# folder $scratch.
# shellcheck source=tests/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Seconds that any wait may take.
limit_s=60
dockerd_pid=

# Ends a child: SIGTERM, then SIGKILL after 20 s.
end() { # PID, or nothing
    [[ -n ${1:-} ]] || return 0
    kill -TERM "$1" 2>/dev/null || return 0
    timeout 20 tail --pid="$1" -f /dev/null || kill -KILL "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

# Waits until a command succeeds; on a time-out prints the logs and ends.
until_true() { # WHAT COMMAND...
    local what=$1 end=$((SECONDS + limit_s))
    shift
    until "$@" >/dev/null 2>&1; do
        [[ $SECONDS -lt $end ]] || {
            tail -n 30 "$scratch"/*.log >&2 || true
            die "waited $limit_s s in vain for $what"
        }
        sleep 0.05
    done
}

# Two network namespaces, and a veth between them whose ends are called eth0. The kernel itself sends nothing on it.
make_link() { # NAMESPACE NAMESPACE
    local namespace
    for namespace in "$1" "$2"; do
        ip netns add "$namespace"
        ip netns exec "$namespace" sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
    done
    ip -n "$1" link add eth0 type veth peer name eth0 netns "$2"
    for namespace in "$1" "$2"; do ip -n "$namespace" link set eth0 up; done
    # Each end sees it for itself.
    for namespace in "$1" "$2"; do until_true "the carrier of $namespace" has_carrier "$namespace"; done
}
has_carrier() { [[ $(ip -n "$1" -br link show eth0) == *' UP '* ]]; }

remove_namespaces() { # NAMESPACE...
    local namespace
    for namespace; do ip netns del "$namespace" 2>/dev/null || true; done
}

# A Docker daemon in a network namespace, so that --network=host means that one; 1 if it does not run here. (`ip netns
# exec` would hide the control groups.)
start_dockerd() { # NAMESPACE
    export DOCKER_HOST=unix://$scratch/docker.sock
    nsenter --net="/run/netns/$1" dockerd --data-root "$scratch/data" --exec-root "$scratch/exec" \
        --pidfile "$scratch/pid" --host "$DOCKER_HOST" --storage-driver vfs --iptables=false --ip6tables=false \
        --bridge=none >"$scratch/dockerd.log" 2>&1 &
    dockerd_pid=$!
    until_true 'dockerd' dockerd_answers_or_ended
    docker version >/dev/null 2>&1
}
dockerd_answers_or_ended() { ! kill -0 "$dockerd_pid" 2>/dev/null || docker version; }

stop_dockerd() {
    [[ -n $dockerd_pid ]] || return 0
    docker ps -aq 2>/dev/null | xargs -r docker rm -f >/dev/null 2>&1 || true
    end "$dockerd_pid"
    # It leaves mounts behind: network namespaces of containers, and more if it was killed.
    awk -v under="$scratch/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount || true
}
