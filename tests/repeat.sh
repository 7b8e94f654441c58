#!/usr/bin/env bash
# Runs every test that has threads, processes or interfaces REPEAT times (50), and stops at the first
# failure: a test that fails once in fifty runs is a bug. `tests/repeat.sh FILTER...` repeats only tests
# whose names contain a FILTER.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

times=${REPEAT:-50}
[[ $times =~ ^[1-9][0-9]*$ ]] || die "REPEAT=$times: a number of runs, 1 or more"
# One pass of everything takes about six minutes on two cores; a test that hangs must not hold the machine.
binary_limit_s=900

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export WEIR_SKIP_LOG=$scratch/skips

# Prints `NAME PATH` for every test binary of the workspace.
test_binaries() {
    cargo test --locked --workspace --no-run --message-format=json 2>"$scratch/build" |
        jq -r 'select(.profile.test == true and .executable != null)
               | "\(.manifest_path | split("/")[-2]) \(.target.name) \(.executable)"'
}

# Tests of pure functions give the same result every time: these crates have nothing else.
is_pure() { # PACKAGE
    case $1 in
    weir-frame | weir-filter) return 0 ;;
    *) return 1 ;;
    esac
}

test_binaries >"$scratch/binaries" || {
    cat "$scratch/build" >&2
    die 'the tests do not build'
}
[[ -s $scratch/binaries ]] || die 'cargo named no test binary'

runs=0
for ((run = 1; run <= times; run++)); do
    begin=$SECONDS
    while read -r package name path; do
        if is_pure "$package"; then continue; fi
        if ! (cd "crates/$package" && timeout --kill-after=10 "$binary_limit_s" \
            "$path" --test-threads=1 "$@") >"$scratch/output" 2>&1 </dev/null; then
            cat "$scratch/output" >&2
            die "run $run of $times: $package, $name failed"
        fi
        runs=$((runs + 1))
    done <"$scratch/binaries"
    say "run $run of $times: passed in $((SECONDS - begin)) s"
done
say "$times runs, $runs test binaries, none failed"
