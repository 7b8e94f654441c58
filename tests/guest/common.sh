# shellcheck shell=bash
# Functions of the scripts that start QEMU; to be sourced.
# shellcheck source=tests/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

scratch=
qemu_pid=
host_pid=

# Makes the folder $scratch. When the script ends, the folder is removed, and QEMU ($qemu_pid) and a daemon on the host
# ($host_pid) are killed.
make_scratch() {
    scratch=$(mktemp -d)
    trap stop_guest EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

stop_guest() {
    if [[ -n $qemu_pid ]]; then
        kill "$qemu_pid" 2>/dev/null || true
        wait "$qemu_pid" || true
    fi
    if [[ -n $host_pid ]]; then
        kill "$host_pid" 2>/dev/null || true
        wait "$host_pid" || true
    fi
    rm -rf "$scratch"
}

# Copies modules of an unpacked kernel, and those that they need: a module's line in modules.dep names all of them.
add_modules() { # KERNEL TREE MODULE...
    local kernel=$1 tree=$2 version module line file
    version=$(basename "$kernel"/lib/modules/*)
    shift 2
    for module; do
        line=$(grep -E "/$module\.ko(\.xz)?:" "$kernel/lib/modules/$version/modules.dep") || continue # built in
        for file in ${line/:/}; do
            install -D -m 644 "$kernel/lib/modules/$version/$file" "$tree/lib/modules/$version/$file"
        done
    done
    install -D -m 644 -t "$tree/lib/modules/$version" \
        "$kernel/lib/modules/$version"/modules.{alias,builtin,dep,order}
}
