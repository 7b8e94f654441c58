#!/usr/bin/env bash
# Lays out what Weir installs: stage.sh WEIR FOLDER PREFIX [ZSH_DIR]. FOLDER is where the files go, PREFIX where they
# will be: they differ under DESTDIR and in packages. `make install` and dist.sh share it, so a package and a local
# install cannot differ. Needs no cargo: the binary writes its own pages.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../tests/common.sh"

usage='usage: packaging/stage.sh WEIR FOLDER PREFIX [ZSH_DIR]'
weir=${1:?$usage}
folder=${2:?$usage}
prefix=${3:?$usage}
# Debian's own packages have a directory apart from the administrator's.
zsh=${4:-share/zsh/site-functions}

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$weir" pages "$pages"

install -D -m 755 "$weir" "$folder/bin/weir"
install -D -m 644 -t "$folder/share/man/man1" "$pages"/*.1
install -D -m 644 "$pages/weir.bash" "$folder/share/bash-completion/completions/weir"
install -D -m 644 -t "$folder/$zsh" "$pages/_weir"
install -D -m 644 -t "$folder/share/fish/vendor_completions.d" "$pages/weir.fish"
install -D -m 644 -t "$folder/share/doc/weir" "$root/README.md" "$root/ARCHITECTURE.md"
# Where the links of README.md look for them.
install -D -m 644 -t "$folder/share/doc/weir/docs" "$root"/docs/*.md
install -D -m 644 -t "$folder/share/doc/weir/examples" \
    "$root/packaging/weir-capture@.service" "$root/packaging/weir.toml" "$root/packaging/compose.yaml"
install -D -m 644 -t "$folder/share/doc/weir/examples/kubernetes" "$root"/packaging/kubernetes/*.yaml
# systemd looks here below /usr and /usr/local. The unit is not enabled.
install -D -m 644 "$root/packaging/weir.sysusers" "$folder/lib/sysusers.d/weir.conf"
install -D -m 644 -t "$folder/lib/systemd/system" "$root/packaging/weir.service"
sed -i "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|" \
    "$folder/lib/systemd/system/weir.service" "$folder/share/doc/weir/examples/weir-capture@.service"
