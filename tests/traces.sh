#!/usr/bin/env bash
# Prints a folder with 257 traces by others, of many protocols, some of them damaged on purpose: the test traces of
# nDPI, from the source of Debian's package (LGPL; 127 MB, downloaded once into .cache/tools). Exit 3: the download failed.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"

mirror=${WEIR_DEBIAN_MIRROR:-http://deb.debian.org/debian}
source=ndpi_4.2.orig.tar.gz
sum=e54ce8fe13adc5d747be7553513657fae78f796e0bd459e122c280cc06ce4daf

folder=$root/.cache/tools/traces
if [[ ! -d $folder ]]; then
    mkdir -p "$root/.cache/tools"
    scratch=$(mktemp -d "$root/.cache/tools/traces-XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    wget -q --timeout=60 --tries=2 -O "$scratch/$source" "$mirror/pool/main/n/ndpi/$source" || exit 3
    echo "$sum  $scratch/$source" | sha256sum --check --quiet >&2 || die "$source is not what it was"
    tar -xzf "$scratch/$source" -C "$scratch" --wildcards '*/tests/pcap/*'
    mv "$scratch"/nDPI-*/tests/pcap "$folder"
fi
echo "$folder"
