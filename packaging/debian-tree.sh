#!/usr/bin/env bash
# Prints the folder of a small system of another Debian release: debian-tree.sh SUITE PACKAGE,... It is made by
# debootstrap once, into .cache/debian (remove that for newer packages), which needs root and a Debian mirror
# (WEIR_DEBIAN_MIRROR=URL names another). It is used again later, so nothing may be written into it.
# Exit 3: it cannot be made here, and standard error says why.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../tests/common.sh"

usage='usage: packaging/debian-tree.sh SUITE PACKAGE,...'
suite=${1:?$usage}
packages=${2:?$usage}
mirror=${WEIR_DEBIAN_MIRROR:-http://deb.debian.org/debian}
cache=$root/.cache/debian

cannot() {
    say "no Debian $suite: $*"
    exit 3
}

# In memory, since dpkg waits until each file is on the disk. This mount and those of debootstrap end with the namespace.
make_tree() { # SCRATCH
    # shellcheck disable=SC2016  # for the inner shell to expand
    unshare --mount -- bash -euc '
        mount -t tmpfs -o mode=755,size=1g tmpfs "$1/memory"
        debootstrap --variant=minbase --include="$4" "$3" "$1/memory" "$2" >"$1/log" 2>&1
        cd "$1/memory"
        # Package lists and packages would be half of the folder.
        rm -rf var/cache/apt/archives/*.deb var/cache/apt/*.bin var/lib/apt/lists/*
        # With absolute links, a linker of this system would use files outside of the tree.
        find usr/lib* -maxdepth 2 -lname "/*" | while IFS= read -r link; do
            ln -sfnr ".$(readlink "$link")" "$link"
        done
        cp -a . "$1/tree"' inner "$1" "$mirror" "$suite" "$packages" ||
        die "debootstrap $suite failed: $(tail -5 "$1/log")"
}

# The name depends on everything that goes into the tree.
recipe=$({ printf '%s\n' "$suite" "$packages" && sed -n '/^make_tree/,/^}/p' "${BASH_SOURCE[0]}"; } | sha256sum)
tree=$cache/$suite-${recipe:0:12}
if [[ ! -d $tree ]]; then
    [[ $EUID -eq 0 ]] || cannot 'debootstrap needs root'
    command -v debootstrap >/dev/null || cannot 'debootstrap is missing; run: tests/setup.sh dist'
    [[ -e /usr/share/debootstrap/scripts/$suite ]] || cannot 'this debootstrap does not know it'
    wget -q --spider --timeout=20 --tries=1 "$mirror/dists/$suite/InRelease" >/dev/null ||
        cannot "not at $mirror (WEIR_DEBIAN_MIRROR=URL names another mirror)"
    mkdir -p "$cache"
    take_lock "$cache/$suite.lock"
fi
# Another script may have made it meanwhile.
if [[ ! -d $tree ]]; then
    rm -rf "$cache/$suite"-*
    scratch=$(mktemp -d "$cache/making.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    begin=$SECONDS
    mkdir "$scratch/memory" "$scratch/tree"
    make_tree "$scratch"
    # It gets its name only once it is complete.
    mv "$scratch/tree" "$tree"
    say "Debian $suite with $packages in $((SECONDS - begin)) s: $(du -sh "$tree" | cut -f1)"
fi
printf '%s\n' "$tree"
