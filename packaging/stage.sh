#!/usr/bin/env bash
# Lays out what Weir installs: stage.sh WEIR PREFIX [ZSH_DIR]. `make install` and dist.sh share it, so a
# package and a local install cannot differ. Needs no cargo: the binary writes its own pages.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../tests/common.sh"

weir=${1:?usage: packaging/stage.sh WEIR PREFIX [ZSH_DIR]}
prefix=${2:?usage: packaging/stage.sh WEIR PREFIX [ZSH_DIR]}
# Debian's own packages have a directory apart from the administrator's.
zsh=${3:-share/zsh/site-functions}

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$weir" pages "$pages"

install -D -m 755 "$weir" "$prefix/bin/weir"
install -D -m 644 -t "$prefix/share/man/man1" "$pages"/*.1
install -D -m 644 "$pages/weir.bash" "$prefix/share/bash-completion/completions/weir"
install -D -m 644 -t "$prefix/$zsh" "$pages/_weir"
install -D -m 644 -t "$prefix/share/fish/vendor_completions.d" "$pages/weir.fish"
install -D -m 644 -t "$prefix/share/doc/weir" "$root/README.md" "$root/ARCHITECTURE.md"
install -D -m 644 -t "$prefix/share/doc/weir/examples" "$root/packaging/weir-capture@.service" \
    "$root/packaging/weir.service" "$root/packaging/weir.toml"
