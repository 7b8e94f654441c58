#!/usr/bin/env bash
# Makes the packages twice, which must give the same bytes, and checks them with lintian. Installs them with apt on a
# clean Debian 12, uses each of them, removes them, and checks that no files remain. Uses the libraries with programs of
# Debian 11 (libraries.sh). The clean system is a folder made by debootstrap, entered with chroot in separate namespaces;
# all of it is gone when the script ends.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

# shellcheck source=/dev/null
codename=$(source /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
if [[ $codename != bookworm ]]; then
    skip dist "packages for Debian 12 are built on Debian 12, and this is '$codename'"
    exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cargo build --locked --release -p weir --bin weir
WEIR_DIST=$scratch/dist packaging/dist.sh
WEIR_DIST=$scratch/again packaging/dist.sh >/dev/null
cmp "$scratch/dist/SHA256SUMS" "$scratch/again/SHA256SUMS" || die 'the same binary, packed twice, gives other bytes'
(cd "$scratch/dist" && sha256sum --quiet --check SHA256SUMS)

packages=(weir libweir1 libweir-dev python3-weir)
mkdir "$scratch/check"
for package in "${packages[@]}" weir-dbgsym libweir1-dbgsym; do
    deb=("$scratch/dist/${package}"_*.deb)
    [[ ${#deb[@]} -eq 1 && -f ${deb[0]} ]] || die "not one package $package: ${deb[*]}"
    dpkg-deb -R "${deb[0]}" "$scratch/$package"
    [[ $package == *-dbgsym ]] || cp "${deb[0]}" "$scratch/check/$package.deb"
done
# The packager's address is not checked: these packages are not published.
lintian --allow-root --fail-on error,warning \
    --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact "$scratch"/dist/*.deb ||
    die 'lintian objects, see above'

# Errors in a man page are found only by formatting it.
for page in "$scratch"/weir/usr/share/man/man1/*.gz; do
    said=$(LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l "$page" 2>&1 >/dev/null)
    [[ -z $said ]] || die "$(basename "$page"): $said"
done
# Checks the units, if systemd is installed. The stage `systemd` runs them.
if command -v systemd-analyze >/dev/null; then
    unit=$scratch/weir-capture@eth0.service
    sed "s|/usr/bin/weir|$scratch/weir/usr/bin/weir|" "$root/packaging/weir-capture@.service" >"$unit"
    said=$(systemd-analyze --man=no verify "$unit" 2>&1) || die "packaging/weir-capture@.service: $said"
    for name in weir weir-guest; do
        unit=$scratch/$name.service
        sed "s|/usr/bin/weir|$scratch/weir/usr/bin/weir|" "$scratch/weir/usr/lib/systemd/system/$name.service" >"$unit"
        said=$(systemd-analyze --man=no verify "$unit" 2>&1) || die "$name.service: $said"
    done
fi
for script in postinst prerm postrm; do [[ -x $scratch/weir/DEBIAN/$script ]] || die "the package has no $script"; done
# A local install has the program and the libraries in other folders.
local=$scratch/local/opt/weir
packaging/stage.sh "$target_dir/release/weir" "$target_dir/libraries/release" "$local" /opt/weir
grep -qx 'ExecStart=/opt/weir/bin/weir serve .*' "$local/lib/systemd/system/weir.service" ||
    die 'the unit of an install to /opt/weir runs another program'
[[ $(PKG_CONFIG_PATH=$local/lib/pkgconfig pkg-config --libs weir) == *-L/opt/weir/lib* ]] ||
    die 'pkg-config looks elsewhere than in /opt/weir'
# The debug symbols belong to these files.
triplet=$(dpkg-architecture -q DEB_HOST_MULTIARCH)
for file in weir/usr/bin/weir "libweir1/usr/lib/$triplet/libweir.so.1" "libweir1/usr/lib/$triplet/weir/libweirpcap.so"; do
    id=$(LC_ALL=C readelf -n "$scratch/$file" | sed -n 's/.*Build ID: //p')
    [[ -f $scratch/${file%%/*}-dbgsym/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug ]] ||
        die "${file%%/*}-dbgsym has no symbols for $file, which is $id"
done

tests/libraries.sh "$scratch/check"

if [[ $EUID -ne 0 ]]; then
    skip root_dist 'installing a package on a clean system needs root'
    exit 0
fi
rc=0
clean=$(packaging/debian-tree.sh bookworm apt) || rc=$?
if [[ $rc -eq 3 ]]; then
    skip dist 'no clean Debian 12, see above'
    exit 0
fi
[[ $rc -eq 0 ]] || exit "$rc"

system=$scratch/system
cp -a "$clean" "$system"
[[ ! -e $system/usr/lib/$triplet/libpcap.so.0.8 ]] || die 'the clean system has libpcap already'
mv "$scratch/check" "$system/check"
cp crates/weir/demo/trace.pcapng tests/dist-inside.sh tests/dist-inside.c "$system/check/"
cp /etc/resolv.conf "$system/etc/resolv.conf"
# apt downloads each package only once.
archives=$root/.cache/debian/archives
mkdir -p "$archives/partial"
# With its own /proc and /dev, which are gone with the last process of the namespaces.
# shellcheck disable=SC2016  # for the inner shell to expand
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C unshare --mount --pid --fork --kill-child --uts --ipc -- bash -euc '
    mount -t proc proc "$1/proc"
    mount -t tmpfs -o mode=755 tmpfs "$1/dev"
    mkdir "$1/dev/pts"
    mount -t devpts -o newinstance,ptmxmode=666 devpts "$1/dev/pts"
    ln -s pts/ptmx "$1/dev/ptmx"
    for device in null zero full random urandom; do
        touch "$1/dev/$device"
        mount --bind "/dev/$device" "$1/dev/$device"
    done
    mount --bind "$2" "$1/var/cache/apt/archives"
    exec chroot "$1" bash /check/dist-inside.sh' inner "$system" "$archives" >"$scratch/run" || die 'see above'

# The ledgers are checked here, because the clean system has no jq.
ledger() { sed -n "/^ledger $1 /s///p" "$scratch/run"; }
# NAME N: N frames reached the consumer, and every other frame is accounted for.
whole() {
    local said
    said=$(ledger "$1")
    # shellcheck disable=SC2016  # jq's own
    jq -e --argjson n "$2" '.delivered == $n and .lapped == 0 and .unexplained == 0
        and .offered == .captured and .captured == .delivered + .after_limit' >/dev/null <<<"$said" ||
        die "$1: the ledger should say that $2 frames were delivered, and close: '$said'"
}
whole gen 1000
frames=$(LC_ALL=C capinfos -TrcM crates/weir/demo/trace.pcapng | cut -f2)
[[ $frames -gt 0 ]] || die "capinfos says that the trace has '$frames' frames"
whole trace "$frames"
for reader in tcpdump c python; do
    [[ $(sed -n "s/^frames $reader //p" "$scratch/run") == "$frames" ]] ||
        die "$reader should have read $frames frames from the daemon: $(grep '^frames' "$scratch/run")"
done
say "installed, ran 1000 made and $frames replayed frames, had tcpdump, C and Python read them, and left nothing"
