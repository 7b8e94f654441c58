#!/usr/bin/env bash
# Prints the path of a disk image with a Debian 12 whose first process is systemd. Once booted, it runs the script
# systemd-inside.sh of a second disk, which systemd.sh makes.
#
# The image is made by debootstrap once, into .cache/guest (remove that for newer packages), which needs root and a Debian
# mirror (WEIR_DEBIAN_MIRROR=URL names another).
# Exit 3: it cannot be made here, and standard error says why.
set -euo pipefail
# shellcheck source=tests/guest/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

mirror=${WEIR_DEBIAN_MIRROR:-http://deb.debian.org/debian}
# In addition to the package's dependencies: bpftool and tc list attached programs, jq reads ledgers, tcpdump has an
# AppArmor profile.
packages=systemd,systemd-sysv,udev,dbus,kmod,iproute2,bpftool,jq,apparmor,tcpdump,libelf1,libpcap0.8,zlib1g,libgcc-s1
modules=(virtio_pci virtio_blk virtio_console veth sch_ingress cls_bpf)

cannot() {
    say "no Debian with systemd: $*"
    exit 3
}

kernel=$(tests/guest/kernel.sh) || {
    rc=$?
    [[ $rc -eq 3 ]] || exit "$rc"
    cannot 'apt offers no Debian 6.1 kernel here (WEIR_GUEST_KERNEL_DEB=FILE names one)'
}
version=$(basename "$kernel"/lib/modules/*)

# The system is made in memory, since dpkg waits until each file is on the disk.
make_image() { # FOLDER, in which it writes `image`
    local system=$1/system unit
    mkdir "$system"
    mount -t tmpfs -o mode=755,size=1g tmpfs "$system"
    debootstrap --variant=minbase --include="$packages" bookworm "$system" "$mirror" >"$1/debootstrap" 2>&1 ||
        die "debootstrap failed: $(tail -5 "$1/debootstrap")"
    rm -rf "$system"/var/cache/apt/archives/*.deb "$system"/var/lib/apt/lists/*
    # With a machine id, systemd does not treat this as a first boot, at which it would ask questions and enable every unit.
    echo 0123456789abcdef0123456789abcdef >"$system/etc/machine-id"
    echo guest >"$system/etc/hostname"
    # These units would use CPU time during the test, or wait for a network.
    for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
        serial-getty@.service getty@.service systemd-networkd.service apparmor.service; do
        ln -sf /dev/null "$system/etc/systemd/system/$unit"
    done
    cat >"$system/etc/systemd/system/check.service" <<'UNIT'
[Unit]
Description=The check that the second disk brings
After=multi-user.target

[Service]
Type=oneshot
ExecStart=/bin/bash -c 'mkdir -p /check && tar -xf /dev/vdb -C /check && exec /bin/bash /check/systemd-inside.sh'
# The second serial port carries nothing else, so kernel messages cannot cut into the line.
ExecStopPost=/bin/bash -c 'echo "WEIR-GUEST-EXIT:$${EXIT_STATUS:-none}" >/dev/ttyS1; systemctl poweroff -ff'
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
UNIT
    mkdir -p "$system/etc/systemd/system/multi-user.target.wants"
    ln -s ../check.service "$system/etc/systemd/system/multi-user.target.wants/check.service"
    add_modules "$kernel" "$system/usr" "${modules[@]}"
    # depmod of Debian, because its modprobe reads an index that busybox's depmod does not write.
    chroot "$system" depmod "$version"
    truncate -s 1G "$1/image"
    # No journal: nothing in this file system is needed after a crash.
    mke2fs -q -t ext4 -O ^has_journal -d "$system" "$1/image"
}
# This script starts itself again with --make, in a mount namespace with which the mounts end.
if [[ ${1:-} == --make ]]; then
    make_image "$2"
    exit 0
fi

# The name depends on everything that goes into the image.
recipe=$(sed -n '/^packages=/,/^modules=/p; /^make_image/,/^}/p' tests/guest/systemd-image.sh | sha256sum | cut -c1-12)
image=$root/.cache/guest/systemd-$version-$recipe.ext4
if [[ ! -f $image ]]; then
    [[ $EUID -eq 0 ]] || cannot 'debootstrap needs root'
    for tool in debootstrap mke2fs wget; do
        command -v $tool >/dev/null || die "$tool is missing; run: make setup"
    done
    wget -q --spider --timeout=20 --tries=1 "$mirror/dists/bookworm/InRelease" >/dev/null ||
        cannot "not at $mirror (WEIR_DEBIAN_MIRROR=URL names another mirror)"
    take_lock "$root/.cache/guest/systemd.lock"
fi
# Another script may have made it meanwhile.
if [[ ! -f $image ]]; then
    rm -f "$root"/.cache/guest/systemd-*.ext4
    make_scratch
    begin=$SECONDS
    unshare --mount -- tests/guest/systemd-image.sh --make "$scratch"
    # It gets its name only once it is complete.
    mv "$scratch/image" "$image.$$"
    mv "$image.$$" "$image"
    say "a Debian 12 with systemd in $((SECONDS - begin)) s"
fi
printf '%s\n' "$image"
