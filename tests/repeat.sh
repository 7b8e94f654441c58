#!/usr/bin/env bash
# Runs every test that has threads, processes or interfaces REPEAT times (50), and stops at the first
# failure: a test that fails once in fifty runs is a bug. `tests/repeat.sh FILTER...` repeats only tests
# whose names contain a FILTER. With KEEP_GOING=1 it goes on after a failure, and names all failures at the end.
#
# LANES runs (two a CPU) go at the same time, each at another place of the list of test binaries: tests wait more
# than they compute, and each run has different tests at the same time. With WEIR_REPEATED=1, tests that send many
# frames send a fifth (weir_lab::testbed::volume). A run takes some 80 s of two CPUs, so 50 take 70 minutes.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

times=${REPEAT:-50}
[[ $times =~ ^[1-9][0-9]*$ ]] || die "REPEAT=$times: a number of runs, 1 or more"
lanes=${LANES:-$((2 * $(nproc)))}
[[ $lanes =~ ^[1-9][0-9]*$ ]] || die "LANES=$lanes: how many runs go at the same time, 1 or more"
if ((lanes > times)); then lanes=$times; fi
cpus=$(nproc)
# A test that hangs must not occupy the machine. The slowest binary takes about a minute alone, and longer if lanes
# share a CPU.
binary_limit_s=$((600 * ((lanes + cpus - 1) / cpus)))

# They run one by one after the lanes.
mapfile -t alone < <(sed '/^#/d' tests/ALONE)

scratch=$(mktemp -d)
lane_pids=()
export WEIR_SKIP_LOG=$scratch/skips WEIR_REPEATED=1

# Ends the lanes and everything that they started: a lane is a process group (`set -m` below). The tests get time to
# end; the next testbed removes their namespaces.
stop_lanes() {
    local pid tries
    for pid in "${lane_pids[@]}"; do kill -TERM -- "-$pid" 2>/dev/null || true; done
    for ((tries = 0; tries < 50; tries++)); do
        local left=
        for pid in "${lane_pids[@]}"; do
            if kill -0 -- "-$pid" 2>/dev/null; then left=1; fi
        done
        if [[ -z $left ]]; then return; fi
        sleep 0.1
    done
    for pid in "${lane_pids[@]}"; do kill -KILL -- "-$pid" 2>/dev/null || true; done
}
trap 'stop_lanes; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Prints `PACKAGE NAME PATH` for the test binaries of a build.
test_binaries() { # CARGO_ARGUMENT...
    cargo test --locked --workspace "$@" --no-run --message-format=json 2>"$scratch/build" |
        test_binaries_in
}

# Selects the ones to repeat, as `PACKAGE NAME PATH [FILTER]`.
#
# Tests of pure functions and simulations give the same result every time, so of these crates only tests that need root
# are repeated. Of the build with DPDK, only tests that need DPDK.
chosen() { # < binaries of the usual build
    local package name path
    while read -r package name path; do
        case $package in
        weir-frame | weir-simulator) ;;
        weir-filter) echo "$package $name $path root_" ;;
        *) echo "$package $name $path" ;;
        esac
    done
}

chosen_with_dpdk() { # < binaries of the build with DPDK
    local package name path
    while read -r package name path; do
        case $package/$name in
        weir/dpdk) echo "$package $name $path" ;;
        weir-capture/weir_capture) echo "$package $name $path engines::dpdk::" ;;
        esac
    done
}

# Runs a test binary. If it fails and is the first of all lanes, writes what failed into $scratch/failed.
run_binary() { # LANE RUN PACKAGE NAME PATH ARGUMENT...
    local output=$scratch/output.$1 run=$2 package=$3 name=$4 path=$5 status=0 how=failed
    shift 5
    # In the process group of its lane, so that it ends with the group.
    (cd "crates/$package" && exec timeout --foreground --kill-after=10 "$binary_limit_s" \
        "$path" --test-threads=1 "$@") >"$output" 2>&1 </dev/null || status=$?
    if ((status == 0)); then return; fi
    if ((status == 124)); then how="took more than $binary_limit_s s"; fi
    if [[ -n ${KEEP_GOING:-} ]]; then
        cat "$output" >&2
        echo "run $run of $times: $package, $name $how" | tee -a "$scratch/failures" >&2
        return
    fi
    if mkdir "$scratch/first" 2>/dev/null; then
        mv "$output" "$scratch/failed.output"
        echo "run $run of $times: $package, $name $how" >"$scratch/failed"
    fi
    return 1
}

# Every LANES-th run. A run has the whole list of binaries, beginning at this lane's place.
run_lane() { # LANE FILTER...
    local lane=$1 run i begin count=${#binaries[@]} package name path filter
    shift
    for ((run = lane + 1; run <= times; run += lanes)); do
        begin=$SECONDS
        for ((i = 0; i < count; i++)); do
            read -r package name path filter <<<"${binaries[(i + lane * count / lanes) % count]}"
            # Filters of the command line replace it.
            if (($# > 0)); then filter=; fi
            run_binary "$lane" "$run" "$package" "$name" "$path" "${skips[@]}" ${filter:+"$filter"} "$@"
        done
        say "run $run of $times: at its end after $((SECONDS - begin)) s"
    done
}

# Whether a filter selects this test. Without filters, all tests are selected.
is_wanted() { # TEST FILTER...
    local test=$1 filter
    shift
    if (($# == 0)); then return 0; fi
    for filter in "$@"; do
        if [[ $test == *"$filter"* ]]; then return 0; fi
    done
    return 1
}

run_alone() { # FILTER...
    local entry run wanted_package wanted_name test package name path
    for entry in "${alone[@]}"; do
        read -r wanted_package wanted_name test _ <<<"$entry"
        if ! is_wanted "$test" "$@"; then continue; fi
        for binary in "${binaries[@]}"; do
            read -r package name path _ <<<"$binary"
            if [[ $package != "$wanted_package" || $name != "$wanted_name" ]]; then continue; fi
            for ((run = 1; run <= times; run++)); do
                run_binary alone "$run" "$package" "$name" "$path" --exact "$test"
            done
        done
        say "$test: run $times times, alone"
    done
}

# Waits for all lanes, or for the first that fails.
wait_for_lanes() {
    local lane
    for lane in "${lane_pids[@]}"; do
        if ! wait -n; then
            stop_lanes
            cat "$scratch/failed.output" >&2 || true
            die "$(cat "$scratch/failed" || echo "lane $lane was ended")"
        fi
    done
    lane_pids=()
}

# Sets `binaries` to those of a build that CHOSEN selects.
build() { # CHOSEN CARGO_ARGUMENT...
    local chosen=$1
    shift
    test_binaries "$@" >"$scratch/all" || {
        cat "$scratch/build" >&2
        die 'the tests do not build'
    }
    mapfile -t binaries < <("$chosen" <"$scratch/all")
    ((${#binaries[@]} > 0)) || die 'cargo named no test binary'
}

# Starts `COMMAND...` as a job with its own process group. Its SIGINT has the default action, which tests expect; bash
# makes other background jobs ignore it.
start() { # COMMAND...
    (
        trap - EXIT INT TERM
        "$@"
    ) &
    lane_pids+=($!)
}

run_lanes() { # FILTER...
    local lane
    for ((lane = 0; lane < lanes; lane++)); do start run_lane "$lane" "$@"; done
    wait_for_lanes
}

skips=()
for entry in "${alone[@]}"; do
    read -r _ _ name _ <<<"$entry"
    skips+=(--skip "$name")
done
set -m
build chosen
run_lanes "$@"
start run_alone "$@"
wait_for_lanes
# These tests come last, because their program replaces the usual one.
if pkg-config --exists 'libdpdk >= 22.11'; then
    say 'now what only the build with DPDK has'
    build chosen_with_dpdk --features weir/dpdk
    run_lanes "$@"
else
    skip test-repeat 'there is no libdpdk 22.11 or later (Debian: libdpdk-dev): not the engine dpdk'
fi
set +m
if [[ -s $scratch/failures ]]; then
    cat "$scratch/failures" >&2
    die "$(wc -l <"$scratch/failures") failures in $times runs"
fi
say "$times runs in $lanes lanes, $SECONDS s, none failed"
