#!/usr/bin/env bash
# Runs the tests that need root or real interfaces: those with `root_`, `docker_` or `hw_` in their names. The tests of a
# binary run one by one. LANES binaries (one a CPU) run at a time, because these tests wait more than they compute;
# tests/repeat.sh shows that they do not disturb each other. Those of tests/ALONE run at the end, one by one.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

lanes=${LANES:-$(nproc)}
[[ $lanes =~ ^[1-9][0-9]*$ ]] || die "LANES=$lanes: how many test binaries run at the same time, 1 or more"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export scratch

cargo test --locked --workspace --no-run --message-format=json-render-diagnostics >"$scratch/built"
jq -r 'select(.profile.test == true and .executable != null)
    | "\(.manifest_path | split("/")[-2]) \(.target.name) \(.executable)"' "$scratch/built" >"$scratch/binaries"
mapfile -t alone < <(sed '/^#/d' tests/ALONE)
skips=
for entry in "${alone[@]}"; do
    read -r _ _ name _ <<<"$entry"
    skips+=" --skip $name"
done
export skips

# Runs tests of a binary, and prints their output at the end, not mixed with that of others.
run_binary() { # PACKAGE NAME PATH ARGUMENT...
    local package=$1 name=$2 path=$3 output status=0 begin=$SECONDS
    shift 3
    output=$(mktemp -p "$scratch")
    (cd "crates/$package" && "$path" --test-threads=1 "$@") >"$output" 2>&1 </dev/null || status=$?
    if [[ $status -ne 0 ]] || ! grep -q '^running 0 tests' "$output"; then
        # shellcheck disable=SC2016  # for the inner shell to expand
        flock "$scratch/lock" bash -c 'printf "     Running %s, %s: %s s\n" "$@"; cat "$0"' \
            "$output" "$package" "$name" "$((SECONDS - begin))"
    fi
    return "$status"
}
export -f run_binary

failed=0
# A word that is not quoted: several arguments.
# shellcheck disable=SC2016
xargs --max-procs="$lanes" --max-lines=1 bash -c 'run_binary "$@" root_ docker_ hw_ $skips' run <"$scratch/binaries" ||
    failed=1
for entry in "${alone[@]}"; do
    read -r package name test _ <<<"$entry"
    path=$(sed -n "s/^$package $name //p" "$scratch/binaries")
    [[ -n $path ]] || die "tests/ALONE: $package has no test binary '$name'"
    run_binary "$package" "$name" "$path" --exact "$test" || failed=1
done
exit "$failed"
