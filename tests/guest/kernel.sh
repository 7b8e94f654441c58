#!/usr/bin/env bash
# Prints the directory of an unpacked stock Debian 6.1 kernel (vmlinuz, lib/modules). The first call downloads the
# kernel with apt-get into .cache/guest. Nothing is installed on the host.
# Exit status 3: apt has no such package on this machine. WEIR_GUEST_KERNEL_DEB=FILE: unpack this package instead.
# To get a newer security update, remove .cache/guest.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../common.sh"

cache=$root/.cache/guest
mkdir -p "$cache"

if [[ -n ${WEIR_GUEST_KERNEL_DEB:-} ]]; then
    [[ -f $WEIR_GUEST_KERNEL_DEB ]] || die "WEIR_GUEST_KERNEL_DEB: no such file: $WEIR_GUEST_KERNEL_DEB"
    unpacked=$cache/$(basename "$WEIR_GUEST_KERNEL_DEB" .deb)
else
    unpacked=$cache/debian-6.1
fi
if [[ -d $unpacked ]]; then
    printf '%s\n' "$unpacked"
    exit 0
fi

scratch=$(mktemp -d "$cache/unpack.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# Prints the name of the kernel's package, which contains the version; the metapackage depends on this package. Prints
# nothing if apt does not know the metapackage.
kernel_package() {
    local depends
    depends=$(LC_ALL=C apt-cache depends linux-image-cloud-amd64 2>/dev/null) || return 0
    sed -n 's/.*Depends: \(linux-image-6\.1\.[^ ]*\)/\1/p' <<<"$depends"
}

# Without the option, apt-get run by root would try to download as the user _apt, and warn that _apt cannot write here.
download() { (cd "$scratch" && apt-get download -q -o APT::Sandbox::User="$(id -un)" "$1" >&2); }

if [[ -n ${WEIR_GUEST_KERNEL_DEB:-} ]]; then
    cp "$WEIR_GUEST_KERNEL_DEB" "$scratch/"
else
    command -v apt-get >/dev/null || exit 3
    # shellcheck source=/dev/null
    codename=$(source /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    package=$(kernel_package)
    if [[ -z $package && $codename != bookworm ]]; then exit 3; fi
    if [[ -z $package ]] || ! download "$package"; then
        say 'apt has no linux-image-cloud-amd64, or an old one: apt-get update'
        can_be_root || die 'ask the administrator to run: apt-get update'
        as_root apt-get update -q -o DPkg::Lock::Timeout=300 >&2
        package=$(kernel_package)
        [[ -n $package ]] || die "apt knows no linux-image-cloud-amd64; is there a bookworm 'main' line in /etc/apt/sources.list?"
        download "$package"
    fi
fi

deb=("$scratch"/*.deb)
mkdir "$scratch/kernel"
say "unpacking $(basename "${deb[0]}") into $cache"
# BTF is inside vmlinuz. System.map and the documentation are not needed.
dpkg-deb --fsys-tarfile "${deb[0]}" |
    tar -x -C "$scratch/kernel" --no-same-owner --wildcards './boot/vmlinuz-*' './lib/modules/*'
mv "$scratch"/kernel/boot/vmlinuz-* "$scratch/kernel/vmlinuz"
version=$(basename "$scratch"/kernel/lib/modules/*)
busybox depmod -b "$scratch/kernel" "$version"
# If two runs overlap, the second one finds the directory of the first and uses it.
mv -T "$scratch/kernel" "$unpacked" 2>/dev/null || [[ -d $unpacked ]]
printf '%s\n' "$unpacked"
