# shellcheck shell=bash
# shellcheck disable=SC2016,SC2034,SC2154  # guests expand what is in single quotes; names are those of tests/vm.sh
# Machines for tests/vm.sh: QEMU with the port and the monitor for the daemon, and a second monitor and a shell in the
# guest (agent.sh) for the test. To be sourced; all files are in the folder $scratch.

declare -A machine_pid=() machine_program=()
# Other child processes: readers of pipes, readers on the host, generators.
helpers=()

# Images are made once, from the kernel WEIR_GUEST_KERNEL_DEB or that of this Debian.
image_modules='virtio_console ext4'
initramfs_of() { # NAME [run.sh's options]
    local name=$1
    shift
    [[ -x $scratch/hold_bar ]] || gcc -O1 -o "$scratch/hold_bar" tests/vm/hold_bar.c
    [[ -f $scratch/$name.initramfs ]] || WEIR_BIN=$weir WEIR_GUEST_MODULES=$image_modules \
        tests/guest/run.sh --add tests/vm/agent.sh --add "$scratch/hold_bar" --add "$library" --add "$(command -v tcpdump)" "$@" \
        --initramfs "$scratch/$name.initramfs" -- agent.sh
}

# Starts QEMU; its guest may not have booted yet when this returns. $kernel_folder and $initramfs: what it boots; $qemu: the
# program; $cpus and $memory: its resources.
kernel_folder=
initramfs=
qemu="qemu-system-x86_64"
cpus=1
memory=1G
# The daemon's virtio-serial port and monitor. `no`: the arguments have them.
port=yes
# A command that runs its arguments as another user, for QEMU. The user must be able to enter $scratch.
as_qemu=()
start_machine() { # NAME MACHINE [QEMU's arguments]
    local name=$1 machine=$2 at=$scratch/$1 number ports=() pipe
    shift 2
    if [[ $machine == q35 ]]; then
        for number in 1 2; do
            ports+=(-device "pcie-root-port,id=weir$number,chassis=$number,hotplug=on,pref64-reserve=256M")
        done
    fi
    if [[ $port == yes ]]; then
        # shellcheck disable=SC2054  # QEMU's commas
        ports+=(-device virtio-serial -chardev "socket,id=weir,path=$at.port,server=on,wait=off"
            -device virtserialport,id=weir,chardev=weir,name=org.weir.0
            -qmp "unix:$at.monitor,server=on,wait=off")
    fi
    rm -f "$at".{agent,qmp}*
    for pipe in agent qmp; do
        mkfifo -m 666 "$at.$pipe.in" "$at.$pipe.out"
        : >"$at.$pipe.log"
        # Ends with QEMU.
        cat "$at.$pipe.out" >"$at.$pipe.log" &
        helpers+=($!)
    done
    : >"$at.console.log"
    chmod 666 "$at.console.log"
    # Each virtual CPU has its own thread, as with KVM.
    nice -n 3 "${as_qemu[@]}" "$qemu" -nodefaults -no-user-config -display none -machine "$machine" -accel tcg,thread=multi -cpu max \
        -smp "$cpus" -m "$memory" "${ports[@]}" \
        -serial "file:$at.console.log" \
        -chardev "pipe,id=agent,path=$at.agent" -serial chardev:agent \
        -chardev "pipe,id=test,path=$at.qmp" -mon chardev=test,mode=control \
        -kernel "$kernel_folder/vmlinuz" -initrd "$initramfs" \
        -append 'console=ttyS0 panic=-1 quiet' "$@" </dev/null >"$at.qemu.log" 2>&1 &
    machine_pid[$name]=$!
    machine_program[$name]=$qemu
    until_true "QEMU ($name)" machine_is_there_or_ended "$name"
    is_running "$name" || die "QEMU ($name) has ended: $(cat "$at.qemu.log")"
    tell "$name" qmp '{"execute": "qmp_capabilities"}'
}
is_running() { kill -0 "${machine_pid[$1]}" 2>/dev/null; }
machine_is_there_or_ended() {
    ! is_running "$1" || [[ -s $scratch/$1.qmp.log && ($port == no || -S $scratch/$1.monitor) ]]
}
tell() { # NAME agent|qmp LINE
    # Opened for reading and writing, so that it does not wait for the other end.
    printf '%s\n' "$3" 1<>"$scratch/$1.$2.in"
}

# Waits until the guest takes commands.
booted() { # NAME
    limit_s=90 until_true "the guest of $1" is_ready_or_ended "$1"
    is_running "$1" || die "QEMU ($1) has ended: $(cat "$scratch/$1.qemu.log")"
}
is_ready_or_ended() { ! is_running "$1" || grep -q READY "$scratch/$1.agent.log"; }

# Runs a command in the guest, prints its output, and returns its status.
in_guest() { # NAME COMMAND
    local name=$1 id=${EPOCHREALTIME//[^0-9]/}-$BASHPID status command
    # The guest reads a command as one line.
    command=${2//$'\\\n'/ }
    tell "$name" agent "$id ${command//$'\n'/ }"
    until_true "the guest's answer to: $2" has_answered "$name" "$id"
    sed -n "/^BEGIN $id\$/,/^END $id /p" "$scratch/$name.agent.log" | sed '1d;$d'
    status=$(sed -n "s/^END $id //p" "$scratch/$name.agent.log")
    return "$status"
}
has_answered() { ! is_running "$1" || grep -q "^END $2 " "$scratch/$1.agent.log"; }
# The same, and a failure ends the test.
guest() { # NAME COMMAND
    local said
    said=$(in_guest "$@") || die "in the guest of $1: $2: $said
$(in_guest "$1" 'tail -n 5 /tmp/*.err')"
    [[ -z $said ]] || printf '%s\n' "$said"
}

# Runs a command of the test's own monitor, and prints the answer: a line with "return" or "error".
qmp() { # NAME COMMAND [ARGUMENTS]
    local name=$1 id=${EPOCHREALTIME//[^0-9]/}-$BASHPID
    tell "$name" qmp "{\"execute\": \"$2\", \"id\": \"$id\"${3:+, \"arguments\": $3}}"
    until_true "QEMU's answer to $2" grep -q "\"id\": \"$id\"" "$scratch/$name.qmp.log"
    grep "\"id\": \"$id\"" "$scratch/$name.qmp.log"
}
done_by_qmp() { # NAME COMMAND [ARGUMENTS]
    local answer
    answer=$(qmp "$@")
    jq -e 'has("return")' <<<"$answer" >/dev/null || die "QEMU ($1): $2: $answer"
}
hmp() { # NAME LINE: the output of QEMU's human monitor
    qmp "$1" human-monitor-command "{\"command-line\": \"$2\"}" | jq -r '.return // .error.desc'
}
# Our objects and devices in QEMU.
qemu_objects() { # NAME
    local path
    for path in /objects /machine/peripheral; do
        qmp "$1" qom-list "{\"path\": \"$path\"}" | jq -r '.return[].name | select(startswith("weir-"))' || return 1
    done
}
# Fails, too, if QEMU does not answer.
has_no_objects() {
    local objects
    objects=$(qemu_objects "$1") && [[ -z $objects ]]
}

# Prints what mappings of the guest's two devices read once the devices are unplugged. A broker would ask the host to
# keep devices that a process has mapped, so it is killed first; the host then waits 5 s.
read_after_unplug() { # NAME
    guest "$1" 'reads mapped host:lan; start bar hold_bar; within 10 grep -qx "mapped 2" /tmp/bar.err'
    guest "$1" 'killed broker; killed mapped' >/dev/null
    until_true 'the devices to be gone' has_no_objects "$1"
    guest "$1" 'within 20 devices 0 && kill -USR1 $pid_bar && ended bar && echo $(cat /tmp/bar.json)'
    guest "$1" broker
}

kill_machine() { # NAME [SIGNAL]
    kill "-${2:-KILL}" "${machine_pid[$1]}" 2>/dev/null || true
    wait "${machine_pid[$1]}" 2>/dev/null || true
}
# shellcheck disable=SC2317  # by the trap
kill_machines() {
    local name
    for name in "${!machine_pid[@]}"; do kill_machine "$name"; done
    [[ ${#helpers[@]} -eq 0 ]] || kill "${helpers[@]}" 2>/dev/null || true
}
