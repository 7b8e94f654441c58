#!/usr/bin/env bash
# Runs the tests that need root or real interfaces: those with `root_`, `docker_` or `hw_` in their names. The tests of a
# binary run one by one. LANES binaries (one a CPU) run at a time, because these tests wait more than they compute;
# tests/repeat.sh runs more of them at a time, with fewer frames. Those of tests/ALONE run at the end, one by one.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

lanes=${LANES:-$(nproc)}
[[ $lanes =~ ^[1-9][0-9]*$ ]] || die "LANES=$lanes: how many test binaries run at the same time, 1 or more"

# A test that hangs must not occupy the machine. The slowest binary takes about a minute alone.
binary_limit_s=600

scratch=$(mktemp -d)
mkdir "$scratch/output"
# Also prints the output of binaries that did not end.
# shellcheck disable=SC2317  # by the trap
tidy() {
    cat "$scratch/output/"* 2>/dev/null || true
    rm -rf "$scratch"
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export scratch binary_limit_s

cargo test --locked --workspace --no-run --message-format=json-render-diagnostics >"$scratch/built"
test_binaries_in <"$scratch/built" >"$scratch/binaries"
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
    output=$(mktemp -p "$scratch/output" "$package-$name.XXXX")
    # In the process group of this script, so that it ends with the group.
    (cd "crates/$package" && exec timeout --foreground --kill-after=10 "$binary_limit_s" \
        "$path" --test-threads=1 "$@") >"$output" 2>&1 </dev/null || status=$?
    if [[ $status -eq 124 ]]; then echo "error: $package, $name took more than $binary_limit_s s" >>"$output"; fi
    if [[ $status -ne 0 ]] || ! grep -q '^running 0 tests' "$output"; then
        # shellcheck disable=SC2016  # for the inner shell to expand
        flock "$scratch/lock" bash -c 'printf "     Running %s, %s: %s s\n" "$@"; cat "$0"' \
            "$output" "$package" "$name" "$((SECONDS - begin))"
    fi
    rm -f "$output"
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
    "$path" --exact "$test" --list 2>/dev/null | grep -qx "$test: test" ||
        die "tests/ALONE: $package, $name has no test $test"
    run_binary "$package" "$name" "$path" --exact "$test" || failed=1
done
exit "$failed"
