#!/usr/bin/env bash
# Changes the code of crates that parse outside data, one operator or function at a time, and runs the crate's
# tests on each change: if no test fails, one is missing. It takes hours, so it is for releases and not part of
# `make test`. `tests/mutants.sh CRATE...` changes only those crates.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

crates=("$@")
[[ ${#crates[@]} -gt 0 ]] || crates=(weir-ring weir-filter weir-store weir-consumer)
for crate in "${crates[@]}"; do
    [[ -f crates/$crate/Cargo.toml ]] || die "$crate: no such crate; they are the folders in crates/"
done

tools=$root/.cache/tools
PATH=$PATH:$tools/bin
if ! command -v cargo-mutants >/dev/null; then
    say "installing cargo-mutants into $tools"
    cargo install --quiet --locked --root "$tools" cargo-mutants ||
        die 'cargo-mutants could not be installed (cargo install --locked cargo-mutants); is crates.io in reach?'
fi

packages=()
for crate in "${crates[@]}"; do packages+=(--package "$crate"); done
say "changing ${crates[*]}: this takes hours; results are in $target_dir/mutants.out as they come"

mkdir -p "$target_dir"
# Status 2: no test failed for some changes; 3: some tests ran into the time limit, for example in an endless loop.
status=0
cargo mutants "${packages[@]}" --cargo-arg=--locked --output "$target_dir" || status=$?
case $status in
0) say 'every change was noticed' ;;
2) die "changes that no test notices: $target_dir/mutants.out/missed.txt; each asks for a test, or for simpler code" ;;
3) say "every change was noticed, some by the time limit ($target_dir/mutants.out/timeout.txt)" ;;
4) die "the tests fail without any change: $target_dir/mutants.out/log/baseline.log" ;;
*) die "cargo mutants ended with status $status; its logs are in $target_dir/mutants.out/log" ;;
esac
