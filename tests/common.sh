# shellcheck shell=bash
# Sourced by the other scripts: functions for messages, errors and skips.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Where cargo builds, as an absolute path, whatever the caller's CARGO_TARGET_DIR is relative to.
# shellcheck disable=SC2034  # used by the scripts that source this one
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
# ip, tcpdump and ethtool are in sbin, which an ordinary user's PATH leaves out.
PATH=$PATH:/usr/sbin:/sbin

say() { printf '%s\n' "$*" >&2; }

die() {
    say "error: $*"
    exit 1
}

# The same line as the Rust tests write: to standard error, and into the log that tests/skips.sh compares with
# tests/SKIPS.
skip() {
    local line="SKIPPED $1: $2"
    say "$line"
    if [[ -n ${WEIR_SKIP_LOG:-} ]]; then
        printf '%s\n' "$line" >>"$WEIR_SKIP_LOG"
    fi
}

# Waits until no other script has this lock, and has it until this script ends.
take_lock() { # FILE
    local descriptor
    exec {descriptor}>"$1"
    flock "$descriptor"
}

# Prints `PACKAGE NAME PATH` for each test binary in the JSON messages of a `cargo test --no-run`.
test_binaries_in() { # < messages
    jq -r 'select(.profile.test == true and .executable != null)
        | "\(.manifest_path | split("/")[-2]) \(.target.name) \(.executable)"'
}

# Runs a command as root, or fails: callers check `can_be_root` first to say something better.
can_be_root() { [[ $EUID -eq 0 ]] || command -v sudo >/dev/null; }
as_root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}
