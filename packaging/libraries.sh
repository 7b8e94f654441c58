#!/usr/bin/env bash
# Builds libweir.so and libweirpcap.so for other systems, and prints their folder. They are linked with the C library of
# Debian 11, glibc 2.31, so that they load with every later one: programs in containers are often older than the host.
# If no Debian 11 tree can be made, they are linked with this system's C library, and a warning says so.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../tests/common.sh"
cd "$root"

glibc=2.31
# The same list as in tests/libraries.sh, which runs this tcpdump with libweirpcap: for another list,
# debian-tree.sh would make a new tree and delete this one.
packages=libc6-dev,libpcap0.8,tcpdump
# A separate folder, because cargo gives libraries the same names, however they are linked.
build=$target_dir/libraries
libraries=(libweir.so libweirpcap.so)

link_args=()
triplet=$(gcc -print-multiarch)
rc=0
tree=$(packaging/debian-tree.sh bullseye "$packages") || rc=$?
case $rc in
0) # -B puts the folders of the tree before those of the compiler.
    link_args=(-C "link-arg=--sysroot=$tree" -C "link-arg=-B$tree/usr/lib/$triplet")
    ;;
3) say "warning: libweir and libweirpcap are linked with this system's C library: they load with no older one" ;;
*) exit "$rc" ;;
esac

for crate in weir-c weir-pcap; do
    cargo rustc --locked --release -p "$crate" --lib --crate-type cdylib --target-dir "$build" -- "${link_args[@]}" >&2
done
for library in "${libraries[@]}"; do
    file=$build/release/$library
    newest=$(LC_ALL=C objdump -T "$file" | sed -n 's/.*(GLIBC_\([0-9.]*\)).*/\1/p' | sort -Vu | tail -1)
    [[ -n $newest ]] || die "$file asks for no version of glibc: objdump -T shows none"
    if [[ ${#link_args[@]} -gt 0 && $(printf '%s\n' "$newest" "$glibc" | sort -V | tail -1) != "$glibc" ]]; then
        LC_ALL=C objdump -T "$file" | grep -F "(GLIBC_$newest)" >&2
        die "$file needs glibc $newest, for the functions above; it should load with $glibc"
    fi
    say "$library loads with glibc $newest and later"
done
# Lays the C library out as an unpacked package, so that dpkg-shlibdeps (debs.sh) finds the release of libc6 that the
# libraries need.
rm -rf "$build/release/libc6"
if [[ ${#link_args[@]} -gt 0 ]]; then
    install -D -m 644 "$tree"/var/lib/dpkg/info/libc6:*.symbols "$build/release/libc6/DEBIAN/symbols"
    needed=$(LC_ALL=C objdump -p "${libraries[@]/#/$build/release/}" | sed -n 's/^ *NEEDED *//p' |
        grep -v '^libgcc_s' | sort -u)
    for library in $needed; do
        # The loader of arm64 is in usr/lib, and there is no usr/lib64.
        found=$(find "$tree/usr/lib/$triplet/" "$tree/usr/lib64/" "$tree/usr/lib/" -name "$library" -print -quit \
            2>/dev/null || true)
        [[ -n $found ]] || die "$library is not in $tree"
        install -D -m 644 -t "$build/release/libc6/lib/$triplet" "$found"
    done
fi
printf '%s\n' "$build/release"
