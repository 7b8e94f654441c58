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

make_tree() { # TREE LOG
    unshare --mount -- debootstrap --variant=minbase --include="$packages" "$suite" "$1" "$mirror" >"$2" 2>&1 ||
        die "debootstrap failed: $(tail -5 "$2")"
    # Two thirds of the files are not needed here.
    rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/* "$1"/usr/share/{doc,info,locale,man}/*
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
    rm -f "$root"/.cache/tools/suricata-*
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    begin=$SECONDS
    make_tree "$scratch/tree" "$scratch/log"
    # It gets its name only once it is complete.
    tar -C "$scratch/tree" -cf "$scratch/image" .
    mv "$scratch/image" "$image.$$"
    mv "$image.$$" "$image"
    say "Debian 13 with $packages in $((SECONDS - begin)) s: $(du -h "$image" | cut -f1)"
fi
printf '%s\n' "$image"
