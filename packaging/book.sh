#!/usr/bin/env bash
# Builds the book: book.sh FOLDER. The pages keep their places relative to each other, because mdbook copies only one
# folder, and links to pages outside of it would be broken. Exit status 3: mdbook is missing.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../tests/common.sh"
folder=$(realpath -m "${1:?usage: packaging/book.sh FOLDER}")
cd "$root"

mdbook=$(command -v mdbook || echo "$root/.cache/tools/bin/mdbook")
if [[ ! -x $mdbook ]]; then
    say 'mdbook is missing; run: tests/setup.sh book'
    exit 3
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/src"
cp -r README.md ARCHITECTURE.md docs "$scratch/src/"
sed 's|](|](docs/|; s|](docs/\.\./|](|' docs/SUMMARY.md >"$scratch/src/SUMMARY.md"
rm "$scratch/src/docs/SUMMARY.md"
sed 's|^src = .*|src = "src"|' book.toml >"$scratch/book.toml"
said=$("$mdbook" build --dest-dir "$folder" "$scratch" 2>&1) || die "mdbook: $said"
if grep -E 'WARN|ERROR' <<<"$said" >&2; then die 'mdbook objects, see above'; fi
say "the book begins with $folder/index.html"
