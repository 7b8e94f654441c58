#!/usr/bin/env bash
# Packs the release binary: weir_VERSION_ARCH.deb, its debug symbols as weir-dbgsym_..., the same tree as
# a tarball, and SHA256SUMS, all in dist/. `make dist` builds first. The same binary gives the same files:
# every time in them is the commit's, or SOURCE_DATE_EPOCH. DEBFULLNAME and DEBEMAIL name the packager, as they
# do for dch; without them it is whoever packs, on this machine, which is right for a package that stays here.
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

arch=$(dpkg --print-architecture)
number=$("$weir" --version)
number=${number#weir }
commit=$(git rev-parse --short=9 HEAD 2>/dev/null) || commit=
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
    [[ -n $commit ]] || die 'this is no git checkout, so the time of the release is unknown; set SOURCE_DATE_EPOCH'
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
fi
export SOURCE_DATE_EPOCH
# A build between releases sorts before the release that it leads to, and after those that are older.
version=$number-1
if [[ -n $commit && $(git describe --tags --exact-match 2>/dev/null) != "v$number" ]]; then
    version=$number~$(date -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).g$commit-1
fi
maintainer="${DEBFULLNAME:-Weir maintainers} <${DEBEMAIL:-$(id -un)@$(hostname -f 2>/dev/null || hostname)}>"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/weir doc=$scratch/weir/usr/share/doc/weir

# The top section of CHANGELOG.md as Debian writes it.
debian_changelog() {
    printf 'weir (%s) unstable; urgency=medium\n\n' "$version"
    awk '/^## / { section++; next } section != 1 { next }
        /^- / { if (item) print item; item = substr($0, 3); next }
        /^  / { item = item " " substr($0, 3); next }
        { if (item) print item; item = "" }
        END { if (item) print item }' CHANGELOG.md |
        while IFS= read -r item; do fold -s -w 74 <<<"$item" | sed 's/ *$//; 1s/^/  * /; 2,$s/^/    /'; done
    printf '\n -- %s  %s\n' "$maintainer" "$(date -R -d "@$SOURCE_DATE_EPOCH")"
}

control() { # PACKAGE LINES: the fields that differ, from standard input
    local dir=$scratch/$1
    mkdir -p "$dir/DEBIAN"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\n' "$1" "$version" "$arch" "$maintainer"
        printf 'Installed-Size: %s\n' "$(du -k -s --apparent-size --exclude=DEBIAN "$dir" | cut -f1)"
        cat
    } >"$dir/DEBIAN/control"
    (cd "$dir" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$dir/DEBIAN/md5sums"
    dpkg-deb --root-owner-group --build "$dir" "$scratch/${1}_${version}_$arch.deb" >&2
}

packaging/stage.sh "$weir" "$tree/usr" /usr share/zsh/vendor-completions
# Who may read what is nobody else's affair: the postinst gives it to the group weir.
install -D -m 640 -t "$tree/etc/weir" packaging/weir.toml
install -D -m 755 -t "$tree/DEBIAN" packaging/debian/*
echo /etc/weir/weir.toml >"$tree/DEBIAN/conffiles"
install -m 644 -t "$doc" packaging/copyright packaging/README.Debian
install -m 644 CHANGELOG.md "$doc/changelog"
debian_changelog >"$doc/changelog.Debian"
packaging/crates.sh >"$doc/crates.txt"
gzip -9n "$doc"/{changelog,changelog.Debian,crates.txt,ARCHITECTURE.md,README.md} "$tree"/usr/share/man/man1/*.1

# What gdb finds by the build id, as Debian's own debug packages have it.
id=$(readelf -n "$weir" | sed -n 's/.*Build ID: //p')
[[ $id =~ ^[0-9a-f]{8,}$ ]] || die "$weir has no build id, by which debuggers find its symbols; link with gcc"
debug=$scratch/weir-dbgsym/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug
mkdir -p "$(dirname "$debug")" "$scratch/weir-dbgsym/usr/share/doc"
objcopy --only-keep-debug --compress-debug-sections "$weir" "$debug"
chmod 644 "$debug"
ln -s weir "$scratch/weir-dbgsym/usr/share/doc/weir-dbgsym"
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$tree/usr/bin/weir"

# dpkg-shlibdeps wants to be where a source package is.
mkdir "$scratch/debian"
printf 'Source: weir\n\nPackage: weir\nArchitecture: any\n' >"$scratch/debian/control"
depends=$(cd "$scratch" && dpkg-shlibdeps -O -e"$tree/usr/bin/weir")
depends=${depends#shlibs:Depends=}

control weir <<END
Section: net
Priority: optional
Depends: $depends
Description: virtual network probe that counts every frame it loses
 Weir captures a link once, into shared memory, and lets any number of
 consumers read the same frames there, each at its own pace, with every lost
 frame counted. It takes frames by BPF at TC or XDP, AF_XDP, packet sockets or
 libpcap, prints them, writes pcapng files, and makes traffic to measure with.
 .
 It needs Linux 6.1 or later and no kernel module.
END
control weir-dbgsym <<END
Section: debug
Priority: optional
Depends: weir (= $version)
Auto-Built-Package: debug-symbols
Build-Ids: $id
Description: debug symbols for weir
END

# The tarball unpacks to a tree that goes anywhere; only the units say where the program is: in /usr/local/bin.
name=weir-${version%-1}-linux-$arch
mv "$tree/usr" "$scratch/$name"
sed -i 's|^ExecStart=/usr/bin/|ExecStart=/usr/local/bin/|' \
    "$scratch/$name/lib/systemd/system/weir.service" "$scratch/$name/share/doc/weir/examples/weir-capture@.service"
cp LICENSE-APACHE LICENSE-MIT "$scratch/$name/share/doc/weir/"
tar -C "$scratch" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar \
    -c "$name" | gzip -9n >"$scratch/$name.tar.gz"

# One build at a time is there: what SHA256SUMS names is all.
mkdir -p "$out"
rm -f "$out"/weir*.deb "$out"/weir-*.tar.gz
mv "$scratch"/*.deb "$scratch"/*.tar.gz "$out/"
(cd "$out" && sha256sum weir*.deb weir*.tar.gz >SHA256SUMS)
say "$out:"
cat "$out/SHA256SUMS"
