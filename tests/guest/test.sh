#!/usr/bin/env bash
# The guest stage of `make test`: builds weir and the tests of TESTS, runs check.sh on the Debian 6.1 kernel, and
# checks the captured file with file.sh.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../common.sh"
cd "$root"

if [[ $(uname -m) != x86_64 ]]; then
    skip guest "this machine is $(uname -m)"
    exit 0
fi
rc=0
tests/guest/kernel.sh >/dev/null || rc=$?
if [[ $rc -eq 3 ]]; then
    skip guest 'apt offers no Debian 6.1 kernel here (WEIR_GUEST_KERNEL_DEB=FILE names one)'
    exit 0
fi
[[ $rc -eq 0 ]] || exit "$rc"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# With the features of the whole workspace, as in the stage `tests`, so that nothing is built twice. Building the
# tests of the package weir also builds its binary.
list=tests/guest/TESTS
names=$(sed '/^#/d' "$list" | cut -d' ' -f1,2 | sort -u)
wanted=()
while read -r _ name; do
    if [[ $name == lib ]]; then wanted+=(--lib); else wanted+=(--test "$name"); fi
done <<<"$names"
cargo test --locked --workspace --no-run "${wanted[@]}" --message-format=json-render-diagnostics >"$scratch/built"

# Each test binary as PACKAGE-NAME, without cargo's hash.
add=(--add tests/guest/check.sh --add "$list")
while read -r package name; do
    binary=$(jq -r --arg manifest "/crates/$package/Cargo.toml" --arg name "$name" '
        select(.executable and .profile.test and (.manifest_path | endswith($manifest))
            and ($name == if .target.kind == ["lib"] then "lib" else .target.name end))
        | .executable' "$scratch/built")
    [[ -x $binary ]] || die "$list: cargo built no test binary '$name' of $package"
    ln -s "$binary" "$scratch/$package-$name"
    add+=(--add "$scratch/$package-$name")
done <<<"$names"

mkdir "$scratch/out"
WEIR_GUEST_TIMEOUT=${WEIR_GUEST_TIMEOUT:-1200} WEIR_BIN=$target_dir/debug/weir \
    tests/guest/run.sh "${add[@]}" --out "$scratch/out" -- check.sh
tests/guest/file.sh "$scratch/out/pings.pcapng" "$scratch/out/pings.json"
