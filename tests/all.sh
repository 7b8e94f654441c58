#!/usr/bin/env bash
# Runs the stages of `make test`, each with its time, also after one has failed, and prints a summary.
# With arguments, runs only those stages: `tests/all.sh lint guest`.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

# A stage that hangs must not occupy the machine for ever or prevent the summary: each stage may take
# `stage_limit_s`, and all of them together `total_limit_s`.
stage_limit_s=1800
total_limit_s=5050

# `root_`, `docker_` and `hw_` are substrings of test names here, and root.sh runs those that have them, so the two
# stages leave nothing out.
plain_tests=(cargo test --locked --workspace --no-fail-fast -- --test-threads=2
    --skip root_ --skip docker_ --skip hw_)
# Explores interleavings of the code that runs in service. Optimised, because there are millions of them. They are built in
# their own folder, because cargo builds one thing at a time in each.
loom_tests=(env "RUSTFLAGS=${RUSTFLAGS:-} --cfg loom" "CARGO_TARGET_DIR=$target_dir/loom"
    cargo test --locked --release -p weir-ring -p weir-guest
    --test loom --test loom_segments --test loom_wakeups --test loom_bells)

# Only the stage `dist` needs the program as it is shipped, whose optimisation at link time (LTO) takes two minutes.
quickly_built=(env CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16)
# The same for an image, whose program need not be fast.
image=("${quickly_built[@]}" CARGO_PROFILE_RELEASE_OPT_LEVEL=0)

stages=(lint tests root-tests guest tools vm systemd dist image dpdk static loom fuzz)
if [[ $# -gt 0 ]]; then stages=("$@"); fi

scratch=$(mktemp -d)
stage_pid=
ahead_pid=
stop() {
    # `timeout` passes the signal to the process group of the stage.
    local pid
    for pid in $stage_pid $ahead_pid; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" || true
    done
    rm -rf "$scratch"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# Everything is built only once here, so data for faster second builds would only take time and space.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
export WEIR_SKIP_LOG=$scratch/skips
: >"$WEIR_SKIP_LOG"

# Builds what later stages need, in their order, while others wait for timers and guests. With SCHED_IDLE (`chrt --idle`)
# it gets only the CPU time that all others leave. Tests still run a little slower where two CPUs are threads of one core.
# A stage that comes to a build before its end waits for it, by cargo's lock. Whatever fails here fails again in its stage,
# which reports it. The stage `dpdk` is left out: its program would replace the one that the tests run.
ahead() {
    cargo build --locked --release -p weir --bin weir
    packaging/libraries.sh
    tests/tools/suricata-image.sh
    tests/guest/systemd-image.sh
    packaging/debian-tree.sh bookworm apt
    "${image[@]}" "WEIR_DIST=$scratch/ahead" packaging/image/build.sh
    tests/static.sh
    "${quickly_built[@]}" "${loom_tests[@]}" --no-run
    tests/fuzz.sh --no-run
}
build_ahead() {
    timeout --kill-after=10 "$total_limit_s" env --unset=WEIR_SKIP_LOG chrt --idle 0 bash -c "
        $(declare -p scratch image quickly_built loom_tests)
        $(declare -f ahead)
        ahead" >/dev/null 2>&1 &
    ahead_pid=$!
}

report=()
failures=()
failed=0
stage() { # NAME COMMAND...
    local name=$1 begin=$SECONDS result=ok rc=0
    local limit_s=$((total_limit_s - SECONDS))
    shift
    if [[ $limit_s -gt $stage_limit_s ]]; then limit_s=$stage_limit_s; fi
    # If no time is left, the stage still gets some seconds, so that the summary reports a time-out.
    if [[ $limit_s -lt 5 ]]; then limit_s=5; fi
    say ""
    say "=== $name: $*"
    timeout --kill-after=10 "$limit_s" "$@" > >(tee -a "$scratch/said") 2> >(tee -a "$scratch/said" >&2) &
    stage_pid=$!
    wait "$stage_pid" || rc=$?
    stage_pid=
    if [[ $rc -ne 0 ]]; then
        result="FAILED (exit $rc)"
        # 124 comes from `timeout`, 137 from SIGKILL, which the kernel sends, too, if memory is short.
        if [[ $rc -eq 124 || ($rc -eq 137 && $((SECONDS - begin)) -ge $limit_s) ]]; then
            result="FAILED (took more than $limit_s s)"
        fi
        failed=$((failed + 1))
        # The summary names the failures, for those who have only the end of the output. A moment for `tee`.
        sleep 1
        mapfile -t -O "${#failures[@]}" failures < <(
            grep -aE '^test .* FAILED$|panicked at|^error' "$scratch/said" | head -20)
    fi
    rm -f "$scratch/said"
    report+=("$(printf '%-12s %5d s  %s' "$name" $((SECONDS - begin)) "$result")")
}

if [[ $# -eq 0 ]]; then build_ahead; fi
for name in "${stages[@]}"; do
    case $name in
    lint) stage lint tests/lint.sh ;;
    tests) stage tests "${plain_tests[@]}" ;;
    root-tests) stage root-tests tests/root.sh ;;
    dpdk) stage dpdk tests/dpdk.sh ;;
    loom) stage loom "${quickly_built[@]}" "${loom_tests[@]}" ;;
    static) stage static tests/static.sh ;;
    dist) stage dist tests/dist.sh ;;
    image) stage image "${image[@]}" tests/image.sh ;;
    tools) stage tools tests/tools.sh ;;
    guest) stage guest tests/guest/test.sh ;;
    vm) stage vm tests/vm.sh ;;
    libvirt) stage libvirt tests/vm/libvirt.sh ;;
    systemd) stage systemd tests/guest/systemd.sh ;;
    fuzz) stage fuzz tests/fuzz.sh ;;
    *) die "no such stage: $name" ;;
    esac
done
stage skips tests/skips.sh "$WEIR_SKIP_LOG"

say ""
say "=== summary"
for line in "${failures[@]}" "${report[@]}"; do say "$line"; done
say "total        $(printf '%5d' "$SECONDS") s"
if [[ $EUID -ne 0 ]]; then
    # shellcheck disable=SC2016  # for the reader's shell to expand
    say 'Not run as root: the root_ tests were skipped. To run them: sudo -E env "PATH=$PATH" make test'
fi
[[ $failed -eq 0 ]] || die "$failed of ${#report[@]} stages failed"
say 'every stage passed'
