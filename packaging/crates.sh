#!/usr/bin/env bash
# Prints every crate that is linked into PACKAGEs of this workspace, its licence, and its notices: crates.sh PACKAGE...
# The licences require that for the Debian packages (debs.sh) and for the image (image/build.sh).
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../tests/common.sh"
cd "$root"
export LC_ALL=C

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

packages=()
for package in "${@:?usage: packaging/crates.sh PACKAGE...}"; do packages+=(-p "$package"); done
host=$(rustc -vV | sed -n 's/^host: //p')
cargo tree --locked --offline "${packages[@]}" -e normal --prefix none -f '{p}' | awk '{ print $1 " " substr($2, 2) }' |
    sort -u >"$scratch/linked"
cargo metadata --locked --offline --format-version 1 --filter-platform "$host" | jq -r '.packages[] | select(.source)
    | [.name + " " + .version, .manifest_path, .license // "see below"] | @tsv' | sort >"$scratch/known"
while IFS=$'\t' read -r name manifest license; do
    grep -Fqx "$name" "$scratch/linked" || continue
    printf '\n======== %s: %s\n' "$name" "$license"
    find "$(dirname "$manifest")" -maxdepth 2 -type f \
        \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort | while IFS= read -r file; do
        printf '\n-------- %s\n\n' "${file#"$(dirname "$manifest")"/}"
        cat "$file"
    done
done <"$scratch/known"
