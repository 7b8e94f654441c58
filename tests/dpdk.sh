#!/usr/bin/env bash
# Builds with the feature `dpdk` and runs the tests that need it: the engine's own tests, on rings of DPDK,
# and whole captures by the drivers that need no hardware.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

if ! pkg-config --exists 'libdpdk >= 22.11'; then
    skip dpdk "there is no libdpdk 22.11 or later (Debian: libdpdk-dev)"
    exit 0
fi
# Not the whole workspace: the feature changes the engines' crate, so the tests of all libraries above it would be built
# again. The package weir is named for its features of the crates below. One test at a time: DPDK's messages belong to the
# process, and a test would read those of another one.
with_dpdk=(cargo test --locked -p weir-capture -p weir --features weir/dpdk)
"${with_dpdk[@]}" --lib -- --test-threads=1 engines::dpdk::
"${with_dpdk[@]}" --test dpdk -- --test-threads=1
