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
# The whole workspace, so that what other stages have built is used again. One at a time: what DPDK says,
# it says to the process, and one test would take another's reasons.
cargo test --locked --workspace --features weir/dpdk --lib -- --test-threads=1 engines::dpdk::
cargo test --locked --workspace --features weir/dpdk --test dpdk -- --test-threads=1
