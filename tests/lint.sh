#!/usr/bin/env bash
# Formatting and lints; warnings are errors.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

cargo fmt --all --check
if [[ -f fuzz/Cargo.toml ]]; then
    cargo fmt --manifest-path fuzz/Cargo.toml --check
fi
if pkg-config --exists 'libdpdk >= 22.11'; then
    cargo clippy --locked --workspace --all-targets --features weir/dpdk -- -D warnings
    # Code that is only compiled without the feature is in this test and in libraries below it.
    cargo clippy --locked --workspace --test dpdk_missing -- -D warnings
else
    cargo clippy --locked --workspace --all-targets -- -D warnings
fi
if command -v shellcheck >/dev/null; then
    shellcheck -x .ci/run tests/*.sh tests/*/*.sh packaging/*.sh packaging/debian/*.p* packaging/image/*.sh packaging/weirextcap
else
    skip shellcheck 'it is missing (tests/setup.sh lint)'
fi
# Debian's Python, which finds Debian's modules.
/usr/bin/python3 tests/manifests.py
if command -v docker-compose >/dev/null; then
    docker-compose --file packaging/compose.yaml config --quiet
fi

# The same rules as in crates/weir/tests/dependencies.rs, checked by the usual tool. It also reports known vulnerabilities
# if their database is on this machine; nothing is downloaded here.
deny=$(command -v cargo-deny || echo .cache/tools/bin/cargo-deny)
if [[ -x $deny ]]; then
    checks=(licenses bans sources)
    if compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*" >/dev/null; then
        checks+=(--disable-fetch advisories)
    else
        say "no database of advisories here; to get one, run: $deny fetch db"
    fi
    "$deny" --log-level error --offline --locked check --hide-inclusion-graph "${checks[@]}"
else
    skip cargo-deny 'it is missing (tests/setup.sh lint)'
fi

# The book of docs/. crates/weir/tests/tidy.rs checks its table of contents even without mdbook.
book=$(mktemp -d)
rc=0
packaging/book.sh "$book" || rc=$?
rm -rf "$book"
case $rc in
0) ;;
3) skip book 'mdbook is missing, see above' ;;
*) exit "$rc" ;;
esac

# Every crate can be packed for a registry: the package has all files that the crate needs, and every dependency has a
# version. Compiling the packages would take as long as a build: `cargo package -p CRATE` without --no-verify.
# `cargo publish --dry-run` does the same, but asks the registry first, so it does not run with --offline.
packed=$(mktemp -d)
trap 'rm -rf "$packed"' EXIT
cargo package --workspace --no-verify --offline --locked --allow-dirty --target-dir "$packed" >"$packed/said" 2>&1 || {
    cat "$packed/said" >&2
    die 'a crate makes no package'
}
