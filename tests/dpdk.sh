#!/usr/bin/env bash
# Builds with the feature `dpdk` and runs what is only there: the engine's own tests, on rings of DPDK's,
# and whole captures on those of its drivers that need no hardware.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

if ! pkg-config --exists 'libdpdk >= 22.11'; then
    skip dpdk "there is no libdpdk 22.11 or later (Debian: libdpdk-dev)"
    exit 0
fi
# Not the whole workspace: the feature changes the engines' crate, and so all libraries above it would be built as tests
# again. weir-ring is named so that the crates below are those that other stages have built: it asks more of them than
# these two. One at a time: what DPDK says, it says to the process, and one test would take another's reasons.
with_dpdk=(cargo test --locked -p weir-capture -p weir -p weir-ring --features weir/dpdk)
"${with_dpdk[@]}" --lib -- --test-threads=1 engines::dpdk::
"${with_dpdk[@]}" --test dpdk -- --test-threads=1
