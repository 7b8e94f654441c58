#!/usr/bin/env bash
# The guest stage of `make test`: builds weir and runs check.sh on the Debian 6.1 kernel.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../common.sh"
cd "$root"

if [[ $(uname -m) != x86_64 ]]; then
    skip guest "this machine is $(uname -m)"
    exit 0
fi
rc=0
tests/guest/kernel.sh >/dev/null || rc=$?
if [[ $rc -eq 3 ]]; then
    skip guest 'apt offers no Debian 6.1 kernel here (WEIR_GUEST_KERNEL_DEB=FILE names one)'
    exit 0
fi
[[ $rc -eq 0 ]] || exit "$rc"

cargo build --locked -p weir --bin weir
console=$(mktemp)
trap 'rm -f "$console"' EXIT
rc=0
WEIR_BIN=$target_dir/debug/weir tests/guest/run.sh --add tests/guest/check.sh -- check.sh |
    tee "$console" || rc=$?
# What the guest skipped counts as skipped here.
if [[ -n ${WEIR_SKIP_LOG:-} ]]; then
    grep '^SKIPPED ' "$console" >>"$WEIR_SKIP_LOG" || true
fi
exit "$rc"
