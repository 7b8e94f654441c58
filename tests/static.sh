#!/usr/bin/env bash
# The crates that consumers use must link into a static program without any C, because a guest image or a container
# from scratch has no libraries. This script links and runs such a program, and searches the dependency tree for C.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

crates=(weir-frame weir-ring weir-consumer weir-store weir-filter weir-plug weir-client)
arch=$(uname -m)
gnu=$arch-unknown-linux-gnu
musl=$arch-unknown-linux-musl

# Crates that compile C, search for C libraries, or bind one. linux-raw-sys has only constants.
c_crates='^(cc|cmake|bindgen|pkg-config|vcpkg|pcap|libbpf-[a-z]+|[a-z0-9_-]+-sys) v'
for crate in "${crates[@]}"; do
    tree=$(cargo tree --locked -p "$crate" -e normal,build --prefix none --target "$gnu")
    # zstd is C that weir-store compiles in for compressed files (decision 0045); it needs no library.
    allowed='^linux-raw-sys '
    [[ $crate == weir-store ]] && allowed='^(linux-raw-sys|zstd-sys|cc|pkg-config) '
    if found=$(grep -E "$c_crates" <<<"$tree" | grep -vE "$allowed"); then
        say "$found"
        say "$(cargo tree --locked -p "$crate" -e normal,build --target "$gnu")"
        die "$crate depends on C (first lines above); consumers must build without it"
    fi
done
say "no C below ${crates[*]}, but for zstd below weir-store"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/src"
{
    printf '[package]\nname = "weir-static-check"\nversion = "0.0.0"\nedition = "2024"\n\n'
    # A workspace of its own: otherwise cargo would search for one in the parent directories.
    printf '[workspace]\n\n[dependencies]\n'
    for crate in "${crates[@]}"; do
        printf '%s = { path = "%s" }\n' "$crate" "$root/crates/$crate"
    done
} >"$scratch/Cargo.toml"
{
    for crate in "${crates[@]}"; do printf 'use %s as _;\n' "${crate//-/_}"; done
    printf 'fn main() {}\n'
} >"$scratch/src/main.rs"
cp Cargo.lock "$scratch/" # the versions that we ship; --offline: they are all downloaded by now

link() { # TARGET
    local target=$1 program headers
    RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" cargo build --quiet --offline \
        --manifest-path "$scratch/Cargo.toml" --target "$target" --target-dir "$target_dir/static-check"
    program=$target_dir/static-check/$target/debug/weir-static-check
    "$program"
    headers=$(LC_ALL=C readelf --program-headers --dynamic "$program")
    if grep -E 'INTERP|\(NEEDED\)' <<<"$headers" >&2; then
        die "$program is not static: it asks for what is listed above"
    fi
    say "static on $target: $(stat -c %s "$program") bytes, runs"
}

link "$gnu"
if [[ -d $(rustc --print target-libdir --target "$musl") ]]; then
    link "$musl"
else
    skip static-musl "Rust's $musl target is not installed (rustup target add $musl)"
fi
