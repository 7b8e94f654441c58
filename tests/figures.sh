#!/usr/bin/env bash
# Replaces the tables in docs/figures.md by those of a new run of the bench: figures.sh TABLES PAGE. `make figures` calls
# it.
set -euo pipefail
usage='usage: tests/figures.sh TABLES PAGE'
tables=${1:?$usage}
page=${2:?$usage}
begin='<!-- make figures: begin -->'
end='<!-- make figures: end -->'
for mark in "$begin" "$end"; do
    [[ $(grep -cFx -- "$mark" "$page") == 1 ]] || { printf 'error: %s: no single line "%s"\n' "$page" "$mark" >&2; exit 1; }
done
grep -q '^weir .*commit ' "$tables" || { printf 'error: %s: no commit is named\n' "$tables" >&2; exit 1; }
awk -v tables="$tables" -v begin="$begin" -v end="$end" '
    $0 == end { skips = 0 }
    !skips { print }
    $0 == begin { skips = 1; print ""; while ((getline line < tables) > 0) print line; print "" }' "$page" >"$page.new"
mv "$page.new" "$page"
