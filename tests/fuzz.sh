#!/usr/bin/env bash
# Runs every target in fuzz/fuzz_targets for FUZZ_SECONDS (default 10; `make soak` has more), as many at a time as there
# are CPUs. Only fuzzing needs nightly Rust and cargo-fuzz.
# `fuzz.sh TARGET...` runs only those; `fuzz.sh --no-run` only builds all.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

seconds=${FUZZ_SECONDS:-10}
run=yes
if [[ ${1:-} == --no-run ]]; then
    run=no
    shift
fi
shopt -s nullglob
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
    for file in fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
[[ ${#targets[@]} -gt 0 ]] || die 'no fuzz targets in fuzz/fuzz_targets'

nightly=
if command -v rustup >/dev/null; then
    nightly=$(rustup toolchain list | sed -n 's/^\(nightly[^ ]*\).*/\1/p' | head -n 1)
fi
if [[ -z $nightly ]]; then
    skip fuzz 'no nightly Rust toolchain (rustup toolchain install nightly --profile minimal)'
    exit 0
fi

tools=$root/.cache/tools
PATH=$PATH:$tools/bin
if ! command -v cargo-fuzz >/dev/null; then
    say "installing cargo-fuzz into $tools"
    # Not optimised, because it only starts cargo.
    if ! CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug --root "$tools" cargo-fuzz; then
        skip fuzz 'cargo-fuzz is not installed and could not be (cargo install cargo-fuzz)'
        exit 0
    fi
fi

logs=$(mktemp -d)
pids=()
stop() {
    local pid
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$logs"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

cargo "+$nightly" fuzz build --target-dir "$target_dir/fuzz"
[[ $run == yes ]] || exit 0
triple=$(rustc "+$nightly" -vV | sed -n 's/^host: //p')

# Runs the program itself rather than `cargo fuzz run`, so that the pid is the fuzzer's.
start() { # TARGET
    local target=$1
    local corpora=("fuzz/corpus/$target")
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    # libFuzzer writes into the first directory and only reads the others.
    if [[ -d fuzz/seeds/$target ]]; then corpora+=("fuzz/seeds/$target"); fi
    "$target_dir/fuzz/$triple/release/$target" -max_total_time="$seconds" \
        -artifact_prefix="fuzz/artifacts/$target/" -print_final_stats=1 "${corpora[@]}" \
        >"$logs/$target" 2>&1 &
    pids+=($!)
}

failed=()
at_once=$(nproc)
for ((first = 0; first < ${#targets[@]}; first += at_once)); do
    batch=("${targets[@]:first:at_once}")
    pids=()
    for target in "${batch[@]}"; do start "$target"; done
    for i in "${!batch[@]}"; do
        target=${batch[i]}
        if wait "${pids[i]}"; then
            say "fuzz $target: no finding in $seconds s, $(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$target") runs"
        else
            tail -n 40 "$logs/$target" >&2
            say "fuzz $target: FAILED; the input is in fuzz/artifacts/$target; again with: PATH=\$PATH:$tools/bin cargo +$nightly fuzz run $target FILE"
            failed+=("$target")
        fi
    done
done
[[ ${#failed[@]} -eq 0 ]] || die "fuzz targets with findings: ${failed[*]}"
