#!/usr/bin/env bash
# Prints the path of a root file system, as a tar file for `docker import`, of Debian 13 with Suricata 7 and tcpdump: tools
# that are newer than this machine's, with a newer C library (glibc 2.41).
#
# It is made by debootstrap once, into .cache/tools (remove that for newer packages), which needs root and a Debian mirror
# (WEIR_DEBIAN_MIRROR=URL names another). Exit 3: the mirror cannot be reached.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../common.sh"

mirror=${WEIR_DEBIAN_MIRROR:-http://deb.debian.org/debian}
suite=trixie
packages=suricata,tcpdump

# In memory, since dpkg waits until each file is on the disk. The mount ends with the namespace.
make_image() { # FOLDER, in which it writes `image`
    # shellcheck disable=SC2016  # for the inner shell to expand
    unshare --mount -- bash -euc '
        mkdir "$1/tree"
        mount -t tmpfs -o mode=755,size=2g tmpfs "$1/tree"
        debootstrap --variant=minbase --include="$4" "$3" "$1/tree" "$2" >"$1/log" 2>&1
        cd "$1/tree"
        # Two thirds of the files are not needed here.
        rm -rf var/cache/apt/archives/*.deb var/lib/apt/lists/* usr/share/{doc,info,locale,man}/*
        tar -cf "$1/image" .' inner "$1" "$mirror" "$suite" "$packages" ||
        die "debootstrap failed: $(tail -5 "$1/log")"
}

# The name depends on everything that goes into the tree.
recipe=$(sed -n '/^suite=/,/^}/p' "${BASH_SOURCE[0]}" | sha256sum | cut -c1-12)
image=$root/.cache/tools/suricata-$recipe.tar
if [[ ! -f $image ]]; then
    for tool in debootstrap wget; do command -v $tool >/dev/null || die "$tool is missing; run: make setup"; done
    # An older debootstrap does not know the suite.
    [[ -e /usr/share/debootstrap/scripts/$suite ]] || exit 3
    wget -q --spider --timeout=20 --tries=1 "$mirror/dists/$suite/InRelease" >/dev/null || exit 3
    mkdir -p "$root/.cache/tools"
    take_lock "$root/.cache/tools/suricata.lock"
fi
# Another script may have made it meanwhile.
if [[ ! -f $image ]]; then
    rm -f "$root"/.cache/tools/suricata-*
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    begin=$SECONDS
    make_image "$scratch"
    # It gets its name only once it is complete.
    mv "$scratch/image" "$image.$$"
    mv "$image.$$" "$image"
    say "Debian 13 with $packages in $((SECONDS - begin)) s: $(du -h "$image" | cut -f1)"
fi
printf '%s\n' "$image"
