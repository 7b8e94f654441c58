#!/usr/bin/env bash
# Compares the logged skips (`SKIPPED name: reason` lines of the file LOG) with tests/SKIPS. Only tests that are named
# there may skip, so a successful run lists everything that did not run.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"

log=${1:?usage: tests/skips.sh LOG}
allowed=()
while IFS=$'\t' read -r name reason; do
    [[ -n $name && $name != '#'* ]] || continue
    [[ -n $reason ]] || die "tests/SKIPS: no reason (after a tab) for '$name'"
    # Without root these tests cannot run. With root they must run.
    if [[ $name == 'root_*' && $EUID -eq 0 ]]; then continue; fi
    allowed+=("$name")
done <"$root/tests/SKIPS"

is_allowed() { # NAME
    local pattern
    for pattern in "${allowed[@]}"; do
        # Unquoted on purpose: entries are shell patterns.
        # shellcheck disable=SC2053
        if [[ $1 == $pattern ]]; then return 0; fi
    done
    return 1
}

count=0
refused=0
while IFS= read -r line; do
    [[ -n $line ]] || continue
    [[ $line == 'SKIPPED '*': '* ]] || die "$log: not a 'SKIPPED name: reason' line: $line"
    name=${line#SKIPPED }
    name=${name%%: *}
    count=$((count + 1))
    if is_allowed "$name"; then
        say "    $line"
    else
        say "    $line   <- not in tests/SKIPS"
        refused=$((refused + 1))
    fi
done < <(sort -u "$log")
say "$count skipped, $refused of them not allowed"
[[ $refused -eq 0 ]] || die 'make these tests run, or name them in tests/SKIPS with the reason'
