#!/usr/bin/env bash
# Packs the release binary and the libraries: Debian packages (debs.sh), everything as a tarball, and SHA256SUMS, all in
# dist/. `make dist` builds the binary first. The same files give the same packages: every time in them is the commit's,
# or SOURCE_DATE_EPOCH. DEBFULLNAME and DEBEMAIL name the packager, as they do for dch; without them it is the user on
# this machine, which is enough for packages that are not published.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../tests/common.sh"
cd "$root"
umask 022
export LC_ALL=C TZ=UTC

weir=$target_dir/release/weir
out=${WEIR_DIST:-$root/dist}
[[ -x $weir ]] || die "$weir is not there; run: make dist"
for tool in dpkg-deb dpkg-shlibdeps objcopy jq; do
    command -v "$tool" >/dev/null || die "$tool is missing; run: tests/setup.sh dist"
done
libraries=$(packaging/libraries.sh)

arch=$(dpkg --print-architecture)
# "weir 0.1.0 (39090c6a1b2c)"
read -r _ number _ <<<"$("$weir" --version)"
commit=$(git rev-parse --short=9 HEAD 2>/dev/null) || commit=
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
    [[ -n $commit ]] || die 'this is no git checkout, so the time of the release is unknown; set SOURCE_DATE_EPOCH'
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
fi
export SOURCE_DATE_EPOCH
# The version of a build between releases sorts after the last release and before the next one.
version=$number-1
if [[ -n $commit && $(git describe --tags --exact-match 2>/dev/null) != "v$number" ]]; then
    version=$number~$(date -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).g$commit-1
fi
maintainer="${DEBFULLNAME:-Weir maintainers} <${DEBEMAIL:-$(id -un)@$(hostname -f 2>/dev/null || hostname)}>"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/out"
packaging/debs.sh "$weir" "$libraries" "$version" "$maintainer" "$scratch/out"

# The tarball can be unpacked anywhere; only the units and weir.pc contain a path, /usr/local.
name=weir-${version%-1}-linux-$arch
tree=$scratch/$name
packaging/stage.sh "$weir" "$libraries" "$tree" /usr/local
strip --strip-unneeded --remove-section=.comment --remove-section=.note \
    "$tree/bin/weir" "$tree"/lib/libweir.so.*.*.* "$tree/lib/weir/libweirpcap.so"
cp LICENSE-APACHE LICENSE-MIT CHANGELOG.md packaging/copyright "$tree/share/doc/weir/"
packaging/crates.sh weir weir-c weir-pcap | gzip -9n >"$tree/share/doc/weir/crates.txt.gz"
gzip -9n "$tree"/share/man/man1/*.1
tar -C "$scratch" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar \
    -c "$name" | gzip -9n >"$scratch/out/$name.tar.gz"

# dist/ has only one build: the files of SHA256SUMS.
mkdir -p "$out"
rm -f "$out"/{weir,libweir,python3-weir}*.deb "$out"/weir-*.tar.gz
mv "$scratch"/out/* "$out/"
(cd "$out" && sha256sum -- *.deb weir*.tar.gz >SHA256SUMS)
say "$out:"
cat "$out/SHA256SUMS"
