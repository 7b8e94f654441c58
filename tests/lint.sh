#!/usr/bin/env bash
# Formatting and lints, warnings being errors.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

cargo fmt --all --check
if [[ -f fuzz/Cargo.toml ]]; then
    cargo fmt --manifest-path fuzz/Cargo.toml --check
fi
cargo clippy --locked --workspace --all-targets -- -D warnings
if pkg-config --exists 'libdpdk >= 22.11'; then
    # Only what has code for it; weir-ring is named for the reason that dpdk.sh gives.
    cargo clippy --locked -p weir-capture -p weir -p weir-ring --features weir/dpdk --all-targets -- -D warnings
fi
if command -v shellcheck >/dev/null; then
    shellcheck -x .ci/run tests/*.sh tests/*/*.sh packaging/*.sh packaging/debian/*.p* packaging/image/*.sh packaging/weirextcap
else
    skip shellcheck 'it is missing (tests/setup.sh lint)'
fi
# Debian's Python: that is what Debian's modules are for.
/usr/bin/python3 tests/manifests.py
if command -v docker-compose >/dev/null; then
    docker-compose --file packaging/compose.yaml config --quiet
fi

# Every crate makes a package as it goes to a registry: files that it needs are inside of it, and what it depends on has a
# version. Whether the packages compile takes as long as a build: `cargo package -p CRATE` without --no-verify.
packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
cargo package --workspace --no-verify --offline --locked --allow-dirty --target-dir "$packed" >"$packed/said" 2>&1 || {
    cat "$packed/said" >&2
    die 'a crate makes no package'
}
