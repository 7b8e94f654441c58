#!/usr/bin/env bash
# Splits the files of stage.sh into Debian packages: debs.sh WEIR LIBRARIES VERSION MAINTAINER OUT. debian/ has the contents
# of each. dist.sh calls this, and has set SOURCE_DATE_EPOCH: the same files give the same packages.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../tests/common.sh"
cd "$root"
umask 022
export LC_ALL=C TZ=UTC

usage='usage: packaging/debs.sh WEIR LIBRARIES VERSION MAINTAINER OUT'
weir=${1:?$usage}
libraries=${2:?$usage}
version=${3:?$usage}
maintainer=${4:?$usage}
out=${5:?$usage}

triplet=$(dpkg-architecture -q DEB_HOST_MULTIARCH)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

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

# Debian's tools expect to run in the folder of a source package.
mkdir "$scratch/debian"
debian_changelog >"$scratch/debian/changelog"
sed "s|@MAINTAINER@|$maintainer|" packaging/debian/control >"$scratch/debian/control"

take() { # PACKAGE PATH...: moves files from the tree of weir, which has all files at first
    local path
    for path in "${@:2}"; do
        mkdir -p "$scratch/$1/$(dirname "$path")"
        mv "$scratch/weir/$path" "$scratch/$1/$path"
    done
}

document() { # PACKAGE: the documents that every package must have
    local doc=$scratch/$1/usr/share/doc/$1
    install -D -m 644 -t "$doc" packaging/copyright
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
    gzip -9nc "$scratch/debian/changelog" >"$doc/changelog.Debian.gz"
    if [[ -f packaging/debian/$1.lintian-overrides ]]; then
        install -D -m 644 "packaging/debian/$1.lintian-overrides" "$scratch/$1/usr/share/lintian/overrides/$1"
    fi
}

# Moves the symbols of a program or a library into a debug package, in which gdb finds them by the build id.
split_symbols() { # PACKAGE FILE
    local id debug
    id=$(readelf -n "$2" | sed -n 's/.*Build ID: //p')
    [[ $id =~ ^[0-9a-f]{8,}$ ]] || die "$2 has no build id, by which debuggers find its symbols; link with gcc"
    debug=$scratch/$1-dbgsym/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug
    mkdir -p "$(dirname "$debug")" "$scratch/$1-dbgsym/usr/share/doc"
    objcopy --only-keep-debug --compress-debug-sections "$2" "$debug"
    chmod 644 "$debug"
    strip --strip-unneeded --remove-section=.comment --remove-section=.note "$2"
    ln -sfn "$1" "$scratch/$1-dbgsym/usr/share/doc/$1-dbgsym"
    echo "$id" >>"$scratch/debian/$1.build-ids"
}

pack() { # FOLDER PACKAGE OPTION...: with the fields of PACKAGE, which the options change
    local dir=$scratch/$1
    mkdir -p "$dir/DEBIAN"
    touch "$scratch/debian/$2.substvars"
    (cd "$dir" && find usr -type f -print0 | sort -z | xargs -0r md5sum) >"$dir/DEBIAN/md5sums"
    (cd "$scratch" && dpkg-gencontrol "-p$2" "-P$dir" "-Tdebian/$2.substvars" -fdebian/files "${@:3}")
    dpkg-deb --root-owner-group --build "$dir" "$out" >&2
}

pack_symbols() { # PACKAGE OPTION...
    local ids
    ids=$(sort "$scratch/debian/$1.build-ids" | paste -sd ' ')
    pack "$1-dbgsym" "$1" "-DPackage=$1-dbgsym" "-DDepends=$1 (= \${binary:Version})" "-DDescription=debug symbols for $1" \
        -DSection=debug -DAuto-Built-Package=debug-symbols "-DBuild-Ids=$ids" -URecommends -USuggests "${@:2}"
}

script_of() { # PACKAGE: maintainer scripts, and other control files of dpkg
    local part
    for part in postinst prerm postrm; do
        [[ ! -f packaging/debian/$1.$part ]] || install -D -m 755 "packaging/debian/$1.$part" "$scratch/$1/DEBIAN/$part"
    done
}

packaging/stage.sh "$weir" "$libraries" "$scratch/weir/usr" /usr "lib/$triplet" share/zsh/vendor-completions
library=("$scratch/weir/usr/lib/$triplet"/libweir.so.*.*)
take libweir1 "usr/lib/$triplet"/{"$(basename "${library[0]}")",libweir.so.1,weir/libweirpcap.so}
take libweir-dev usr/include/weir.h "usr/lib/$triplet"/{libweir.so,pkgconfig/weir.pc}
module=usr/lib/python3/dist-packages/weir
mkdir -p "$scratch/python3-weir/$(dirname "$module")"
mv "$scratch/weir/usr/share/weir/python/src/weir" "$scratch/python3-weir/$module"
rm -r "$scratch/weir/usr/share/weir"
find "$scratch/weir" -depth -type d -empty -delete

# weir
document weir
doc=$scratch/weir/usr/share/doc/weir
install -m 644 -t "$doc" packaging/README.Debian
packaging/crates.sh weir >"$doc/crates.txt"
# README.md and ARCHITECTURE.md stay as they are: docs/*.md link to them.
gzip -9n "$doc"/crates.txt "$scratch"/weir/usr/share/man/man1/*.1
# The postinst gives it to the group weir.
install -D -m 640 -t "$scratch/weir/etc/weir" packaging/weir.toml
script_of weir
echo /etc/weir/weir.toml >"$scratch/weir/DEBIAN/conffiles"
split_symbols weir "$scratch/weir/usr/bin/weir"
(cd "$scratch" && dpkg-shlibdeps -Tdebian/weir.substvars -eweir/usr/bin/weir)
pack weir weir
pack_symbols weir -UMulti-Arch

# libweir1
document libweir1
packaging/crates.sh weir-c weir-pcap | gzip -9n >"$scratch/libweir1/usr/share/doc/libweir1/crates.txt.gz"
binaries=()
for file in "$scratch/libweir1/usr/lib/$triplet"/{libweir.so.*.*,weir/libweirpcap.so}; do
    split_symbols libweir1 "$file"
    binaries+=("-e$file")
done
mkdir "$scratch/libweir1/DEBIAN"
# Programs that are linked with it depend on the release in which the functions that they call were added.
(cd "$scratch" && dpkg-gensymbols -plibweir1 "-P$scratch/libweir1" "-I$root/packaging/debian/libweir1.symbols" "-v$version" -c4)
echo 'libweir 1 libweir1 (>= 0.1.0~)' >"$scratch/libweir1/DEBIAN/shlibs"
echo 'activate-noawait ldconfig' >"$scratch/libweir1/DEBIAN/triggers"
# The C library with which the libraries are linked, if it is not that of this system.
libc=()
if [[ -d $libraries/libc6 ]]; then libc=("-S$libraries/libc6"); fi
(cd "$scratch" && dpkg-shlibdeps -Tdebian/libweir1.substvars "${libc[@]}" "${binaries[@]}")
pack libweir1 libweir1
pack_symbols libweir1

# libweir-dev
mkdir -p "$scratch/libweir-dev/usr/share/doc"
ln -s libweir1 "$scratch/libweir-dev/usr/share/doc/libweir-dev"
pack libweir-dev libweir-dev

# python3-weir
document python3-weir
# pip and importlib.metadata find the module by this.
info=$scratch/python3-weir/$module-$("$weir" --version | cut -d' ' -f2).dist-info
mkdir "$info"
sed -n 's/^name = "\(.*\)"/Metadata-Version: 2.1\nName: \1/p; s/^version = "\(.*\)"/Version: \1/p
    s/^description = "\(.*\)"/Summary: \1/p; s/^requires-python = "\(.*\)"/Requires-Python: \1/p' \
    python/pyproject.toml >"$info/METADATA"
script_of python3-weir
pack python3-weir python3-weir
