#!/usr/bin/env bash
# Copies the files to be installed: stage.sh WEIR LIBRARIES FOLDER PREFIX [LIB_DIR [ZSH_DIR]]. LIBRARIES has libweir.so and
# libweirpcap.so. The files are copied to FOLDER, and will be used at PREFIX; the two differ under DESTDIR and in packages.
# `make install` and dist.sh share this script, so a package and a local install cannot differ. It needs no cargo: the
# binary writes its own pages.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../tests/common.sh"

usage='usage: packaging/stage.sh WEIR LIBRARIES FOLDER PREFIX [LIB_DIR [ZSH_DIR]]'
weir=${1:?$usage}
libraries=${2:?$usage}
folder=${3:?$usage}
prefix=${4:?$usage}
# Debian's packages and the administrator have different directories.
lib=${5:-lib}
zsh=${6:-share/zsh/site-functions}

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
"$weir" pages "$pages"

install -D -m 755 "$weir" "$folder/bin/weir"
install -D -m 644 -t "$folder/share/man/man1" "$pages"/*.1
install -D -m 644 "$pages/weir.bash" "$folder/share/bash-completion/completions/weir"
install -D -m 644 -t "$folder/$zsh" "$pages/_weir"
install -D -m 644 -t "$folder/share/fish/vendor_completions.d" "$pages/weir.fish"
install -D -m 644 -t "$folder/share/doc/weir" "$root/README.md" "$root/ARCHITECTURE.md"
# At these places the links of README.md work; crates/weir/tests/tidy/links.rs checks the links between installed files.
install -D -m 644 -t "$folder/share/doc/weir/docs" "$root"/docs/*.md
install -D -m 644 -t "$folder/share/doc/weir/docs/decisions" "$root"/docs/decisions/*.md
install -D -m 644 -t "$folder/share/doc/weir/docs/pictures" "$root"/docs/pictures/*.png
install -D -m 644 -t "$folder/share/doc/weir/examples" \
    "$root/packaging/weir-capture@.service" "$root/packaging/weir.toml" "$root/packaging/compose.yaml"
install -D -m 644 -t "$folder/share/doc/weir/examples/kubernetes" "$root"/packaging/kubernetes/*.yaml
install -D -m 644 -t "$folder/share/doc/weir/examples/grafana" "$root"/packaging/grafana/*.json
# systemd reads units here below /usr and /usr/local. The units are not enabled.
install -D -m 644 "$root/packaging/weir.sysusers" "$folder/lib/sysusers.d/weir.conf"
install -D -m 644 -t "$folder/lib/systemd/system" "$root/packaging/weir.service" "$root/packaging/weir-guest.service"
install -D -m 644 "$root/packaging/weir-guest.rules" "$folder/lib/udev/rules.d/70-weir-guest.rules"
sed -i "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|" \
    "$folder"/lib/systemd/system/weir{,-guest}.service "$folder/share/doc/weir/examples/weir-capture@.service"
# A Wireshark with the same prefix searches here.
install -D -m 755 -t "$folder/$lib/wireshark/extcap" "$root/packaging/weirextcap"

# Programs load libweir.so.1, the linker reads libweir.so. `weir run` searches libweirpcap.so in a separate folder.
version=$(sed -n 's/^Version: //p' "$root/packaging/weir.pc.in")
install -D -m 644 "$libraries/libweir.so" "$folder/$lib/libweir.so.$version"
ln -sfn "libweir.so.$version" "$folder/$lib/libweir.so.${version%%.*}"
ln -sfn "libweir.so.${version%%.*}" "$folder/$lib/libweir.so"
install -D -m 644 -t "$folder/$lib/weir" "$libraries/libweirpcap.so"
install -D -m 644 -t "$folder/include" "$root/crates/weir-c/include/weir.h"
mkdir -p "$folder/$lib/pkgconfig"
sed "s|@PREFIX@|$prefix|; s|@LIBDIR@|\${prefix}/$lib|" "$root/packaging/weir.pc.in" >"$folder/$lib/pkgconfig/weir.pc"
chmod 644 "$folder/$lib/pkgconfig/weir.pc"

# For pip, because each version of Python has its own folder for modules.
install -D -m 644 -t "$folder/share/weir/python" "$root/python/pyproject.toml" "$root/python/README.md"
install -D -m 644 -t "$folder/share/weir/python/src/weir" "$root"/python/src/weir/*.py "$root/python/src/weir/py.typed"
