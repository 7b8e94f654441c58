#!/usr/bin/env bash
# Programs of Debian 11 (glibc 2.31) read from a daemon of this machine: libraries.sh FOLDER, which has libweir1.deb and
# libweir-dev.deb. The programs are Debian 11's tcpdump with libweirpcap, and a program that is linked with libweir there;
# they run in a folder that is entered with chroot. The daemon captures a veth between two namespaces. dist.sh calls this.
set -euo pipefail
# shellcheck source=tests/live.sh
source "$(dirname "$0")/live.sh"
cd "$root"

packages=${1:?usage: tests/libraries.sh FOLDER}
weir=$target_dir/release/weir
frames=1000
rx=weir-old-rx-$$
tx=weir-old-tx-$$
daemon_pid=
reader_pid=
scratch=

# shellcheck disable=SC2317  # by the trap
tidy() {
    for pid in $reader_pid $daemon_pid; do kill "$pid" 2>/dev/null || true; done
    wait
    remove_namespaces "$rx" "$tx"
    if [[ -n $scratch ]]; then rm -rf "$scratch"; fi
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ $EUID -ne 0 ]]; then
    skip root_libraries 'entering a system of Debian 11 needs root'
    exit 0
fi
rc=0
tree=$(packaging/debian-tree.sh bullseye libc6-dev,libpcap0.8,tcpdump) || rc=$?
if [[ $rc -eq 3 ]]; then
    skip dist 'no Debian 11 for the libraries, see above'
    exit 0
fi
[[ $rc -eq 0 ]] || exit "$rc"

scratch=$(mktemp -d)
system=$scratch/system
cp -a "$tree" "$system"
mkdir "$system/check" "$system/run/weir" "$scratch/dev"
dpkg-deb -x "$packages/libweir-dev.deb" "$scratch/dev"
cp "$packages/libweir1.deb" "$system/check/"
chroot "$system" dpkg -i /check/libweir1.deb >"$scratch/dpkg" 2>&1 ||
    die "libweir1 cannot be installed on Debian 11: $(cat "$scratch/dpkg")"
# The compiler is this system's, headers and libraries are those of Debian 11.
triplet=$(gcc -print-multiarch)
lib=$system/usr/lib/$triplet
gcc -Wall -Wextra -Werror "--sysroot=$system" "-B$lib" "-I$scratch/dev/usr/include" -o "$system/check/count" \
    tests/dist-inside.c -l:libweir.so.1

make_link "$rx" "$tx"
socket=$scratch/run/weir.sock
mkdir -m 755 "$scratch/run"
printf '[sources.old]\nsource = "netns:%s/eth0"\neverybody = true\nring_mib = 64\n' "$rx" >"$scratch/weir.toml"
"$weir" serve --config "$scratch/weir.toml" --socket "$socket" >"$scratch/daemon.log" 2>&1 &
daemon_pid=$!
until_true 'the socket of the daemon' test -S "$socket"

# A mount namespace, which ends with the reader, has the socket's folder at its usual place. /proc must be there, because
# the reader checks in it that the BPF maps of the rings are frozen.
read_by() { # NAME COMMAND...: the command must read every frame that is sent
    # shellcheck disable=SC2016  # for the inner shell to expand
    timeout --kill-after=5 "$limit_s" unshare --mount -- bash -euc '
        mount --bind "$1" "$2/run/weir"
        mount -t proc proc "$2/proc"
        exec chroot "${@:2}"' inner "$scratch/run" "$system" "${@:2}" >"$scratch/$1.out" 2>"$scratch/$1.err" &
    reader_pid=$!
    until_true "a feed for $1" reads_or_ended
    "$weir" gen "netns:$tx/eth0" --frames "$frames" --rate 10kpps >"$scratch/gen" 2>&1 || die "$(cat "$scratch/gen")"
    wait "$reader_pid" || die "$1: $(cat "$scratch/$1.out" "$scratch/$1.err")"
    reader_pid=
    until_true "$1 gone" has_no_feed
}
has_feed() { "$weir" status --json --socket "$socket" | jq -e '[.. | .consumers? // empty] | flatten | length > 0' >/dev/null; }
has_no_feed() { ! has_feed; }
reads_or_ended() { has_feed || ! kill -0 "$reader_pid" 2>/dev/null; }

read_by tcpdump env "LD_PRELOAD=/usr/lib/$triplet/weir/libweirpcap.so" tcpdump -nc "$frames" -i host:old udp
read_by c /check/count host:old udp "$frames"

[[ $(wc -l <"$scratch/tcpdump.out") -eq $frames ]] || die "tcpdump printed $(wc -l <"$scratch/tcpdump.out") lines"
for line in "$frames packets captured" "$frames packets received by filter" '0 packets dropped by kernel'; do
    grep -qx "$line" "$scratch/tcpdump.err" || die "tcpdump should say '$line': $(cat "$scratch/tcpdump.err")"
done
[[ $(cat "$scratch/c.out") == "$frames" ]] || die "the program read $(cat "$scratch/c.out") frames of $frames"
say "$(chroot "$system" ldd --version | head -1): tcpdump and a program with libweir read all of $frames frames"
