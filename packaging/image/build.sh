#!/usr/bin/env bash
# Makes the container image: one static program, and the licences of what is linked into it. `make image` runs this.
# Writes dist/weir-image-VERSION-ARCH.tar, which `docker load` and `podman load` read. It needs no Docker. The same program
# gives the same bytes, because every time stamp in it is that of the commit, or SOURCE_DATE_EPOCH.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../../tests/common.sh"
cd "$root"
umask 022
export LC_ALL=C TZ=UTC

out=${WEIR_DIST:-$root/dist}
build=$target_dir/static
target=$(uname -m)-unknown-linux-gnu
# The user of clients. Not 65534, which users that are unknown in the daemon's user namespace are shown as.
user=65532

for tool in dpkg jq readelf strip gcc; do
    command -v "$tool" >/dev/null || die "$tool is missing; run: tests/setup.sh dist"
done
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) ||
        die 'this is no git checkout, so the time of the release is unknown; set SOURCE_DATE_EPOCH'
fi
commit=$(git rev-parse HEAD 2>/dev/null) || commit=

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Debian's libpcap without D-Bus: no-dbus.c says why. The folder's name depends on its contents, so that cargo links
# again when they change.
pcap=$(gcc -print-file-name=libpcap.a)
[[ -f $pcap ]] || die 'libpcap.a is missing; run: tests/setup.sh build'
sum=$(cat "$pcap" packaging/image/no-dbus.c | sha256sum)
libpcap=$build/libpcap-${sum:0:16}
if [[ ! -f $libpcap/libpcap.a ]]; then
    cp "$pcap" "$scratch/libpcap.a"
    gcc -O2 -Wall -Wextra -Werror -c -o "$scratch/no-dbus.o" packaging/image/no-dbus.c
    ar d "$scratch/libpcap.a" pcap-dbus.o
    ar rsD "$scratch/libpcap.a" "$scratch/no-dbus.o"
    mkdir -p "$libpcap"
    mv "$scratch/libpcap.a" "$libpcap/"
fi

# With --target, the flags apply only to the program: procedural macros are libraries, which cannot be static. The image
# needs no debug information, so none is made.
env LIBPCAP_LIBDIR="$libpcap" LIBPCAP_VER="$(pkg-config --modversion libpcap)" CARGO_PROFILE_RELEASE_DEBUG=false \
    RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" \
    cargo build --locked --release -p weir --bin weir --target "$target" --target-dir "$build"
mkdir "$scratch/root"
install -m 755 "$build/$target/release/weir" "$scratch/root/weir"
strip --strip-unneeded --remove-section=.comment "$scratch/root/weir"
headers=$(readelf --program-headers --dynamic --wide "$scratch/root/weir")
if grep -E 'INTERP|\(NEEDED\)' <<<"$headers" >&2; then
    die 'the program is not static: it asks for what is listed above'
fi
# "weir 0.1.0 (39090c6a1b2c)"
read -r _ version _ <<<"$("$scratch/root/weir" --version)"
# Texts that the licences of the linked libraries and crates require.
licenses=$scratch/root/licenses
mkdir "$licenses"
install -m 644 -t "$licenses" LICENSE-APACHE LICENSE-MIT packaging/copyright
packaging/crates.sh weir | gzip -9n >"$licenses/crates.txt.gz"
for library in libc libelf libpcap libz; do
    archive=$(realpath "$(gcc -print-file-name=$library.a)")
    package=$(dpkg -S "$archive" | sed 's/[:,].*//')
    install -m 644 "/usr/share/doc/$package/copyright" "$licenses/$library.copyright"
done
say "static program: $(stat -c %s "$scratch/root/weir") bytes"

# An archive whose bytes depend on the files alone.
pack() { # FOLDER FILE...
    tar -C "$1" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar \
        -c "${@:2}"
}
sha256() { sha256sum "$1" | cut -d' ' -f1; }

# The layout that `docker save` writes. Source: OCI image configuration, and Docker Image Specification v1.2.
mkdir "$scratch/image"
pack "$scratch/root" . >"$scratch/image/layer.tar"
jq -cn --arg arch "$(dpkg --print-architecture)" --arg created "$(date -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" \
    --arg layer "sha256:$(sha256 "$scratch/image/layer.tar")" --arg version "$version" --arg commit "$commit" \
    --arg user "$user:$user" '{
        architecture: $arch, os: "linux", created: $created,
        config: {
            Entrypoint: ["/weir"], Cmd: ["--help"], User: $user, WorkingDir: "/",
            Labels: {
                "org.opencontainers.image.title": "weir",
                "org.opencontainers.image.description": "virtual network probe: the daemon and its clients",
                "org.opencontainers.image.version": $version,
                "org.opencontainers.image.revision": $commit,
                "org.opencontainers.image.licenses": "Apache-2.0 OR MIT"
            }
        },
        rootfs: {type: "layers", diff_ids: [$layer]},
        history: [{created: $created, created_by: "packaging/image/build.sh"}]
    }' >"$scratch/image/config.json"
config=$(sha256 "$scratch/image/config.json").json
mv "$scratch/image/config.json" "$scratch/image/$config"
jq -cn --arg config "$config" --arg version "$version" \
    '[{Config: $config, RepoTags: ["weir:\($version)", "weir:latest"], Layers: ["layer.tar"]}]' \
    >"$scratch/image/manifest.json"

tarball=$out/weir-image-$version-$(dpkg --print-architecture).tar
mkdir -p "$out"
rm -f "$out"/weir-image-*.tar
pack "$scratch/image" "$config" layer.tar manifest.json >"$scratch/image.tar"
mv "$scratch/image.tar" "$tarball"
say "image: $(stat -c %s "$tarball") bytes; load it with: docker load --input ${tarball#"$root/"}"
printf '%s\n' "$tarball"
