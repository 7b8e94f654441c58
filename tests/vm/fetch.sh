#!/usr/bin/env bash
# Downloads a further QEMU or kernel for the tests with guests into .cache/tools, and prints its path. Nothing is
# installed, and apt's sources and lists do not change. Exit 3: the download failed.
#
#     tests/vm/fetch.sh qemu10     QEMU 10 of bookworm-backports, as a program to start
#     tests/vm/fetch.sh linux510   the kernel package of Debian 11, Linux 5.10 (for WEIR_GUEST_KERNEL_DEB)
#
# WEIR_DEBIAN_MIRROR=URL names another mirror. Newer packages: remove .cache/tools/qemu10 or linux510.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../common.sh"

mirror=${WEIR_DEBIAN_MIRROR:-http://deb.debian.org/debian}
security=http://deb.debian.org/debian-security
what=${1:-}
kept=$root/.cache/tools/$what

# apt with its own sources and lists. It knows the installed packages, and so downloads only missing or newer ones.
with_sources() { # COMMAND...
    "$1" -q -o Dir::Etc::SourceList="$scratch/sources" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$scratch/lists" -o Dir::Cache="$scratch/cache" \
        -o APT::Sandbox::User="$(id -un)" "${@:2}" >&2
}
fetch() { # SUITE-LINES PACKAGE...: downloads the packages into $scratch/cache/archives
    printf '%s\n' "$1" >"$scratch/sources"
    shift
    with_sources apt-get update || exit 3
    with_sources apt-get -y --no-install-recommends --download-only install "$@" || exit 3
}

qemu10() {
    local keys='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]' package
    fetch "deb $keys $mirror bookworm main
deb $keys $mirror bookworm-backports main" qemu-system-{x86,common,data}/bookworm-backports
    for package in "$scratch"/cache/archives/*.deb; do dpkg -x "$package" "$scratch/kept"; done
    # It must use its own modules and firmware, not those of the installed QEMU.
    cat >"$scratch/kept/qemu-system-x86_64" <<'PROGRAM'
#!/bin/sh
here=${0%/*}
export QEMU_MODULE_DIR="$here/usr/lib/x86_64-linux-gnu/qemu"
exec "$here/usr/bin/qemu-system-x86_64" -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" -L /usr/lib/ipxe/qemu "$@"
PROGRAM
    chmod 755 "$scratch/kept/qemu-system-x86_64"
    "$scratch/kept/qemu-system-x86_64" --version >&2 || exit 3
}

linux510() {
    local keys='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]' package
    printf '%s\n' "deb $keys $mirror bullseye main" "deb $keys $security bullseye-security main" >"$scratch/sources"
    with_sources apt-get update || exit 3
    # The meta package depends on the package of the kernel, which has the version in its name.
    package=$(with_sources apt-cache depends linux-image-cloud-amd64/bullseye-security 2>&1 |
        sed -n 's/.*Depends: \(linux-image-5\.10\.[^ ]*\)/\1/p')
    [[ -n $package ]] || exit 3
    mkdir "$scratch/kept"
    (cd "$scratch/kept" && with_sources apt-get download "$package") || exit 3
}

case $what in
qemu10) path=$kept/qemu-system-x86_64 ;;
linux510) path=$kept ;;
*) die 'usage: tests/vm/fetch.sh qemu10|linux510' ;;
esac
if [[ ! -d $kept ]]; then
    command -v apt-get >/dev/null && [[ $(dpkg --print-architecture) == amd64 ]] || exit 3
    mkdir -p "$root/.cache/tools"
    scratch=$(mktemp -d "$root/.cache/tools/fetch.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    mkdir -p "$scratch"/{lists,cache/archives}/partial
    "$what"
    # It gets its name only once it is complete. Of two runs at once, the second one keeps the result of the first.
    mv -T "$scratch/kept" "$kept" 2>/dev/null || [[ -d $kept ]]
fi
if [[ $what == linux510 ]]; then path=$(printf '%s\n' "$kept"/*.deb); fi
printf '%s\n' "$path"
