#!/usr/bin/env bash
# The part of dist.sh that runs inside the clean system: installs /check/weir.deb alone, uses it, purges it; then installs
# all four packages, uses them together, and removes them in several orders. Prints lines `ledger NAME JSON` and
# `frames READER N`, which dist.sh checks. It sources nothing, because the clean system does not have our scripts.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
# Twenty times faster, and safe, because the system is deleted afterwards.
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/check
die() {
    printf 'error: in the clean system: %s\n' "$*" >&2
    exit 1
}
# Every path, except those in which apt, dpkg and the kernel keep their own data.
paths() {
    find / -xdev \( -path /check -o -path /proc -o -path /dev -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \
        -o -path /var/lib/dpkg -o -path /tmp \) -prune -o -print | sort
}

apt-get update -qq >&2
paths >/check/before
apt-get install -y -qq --no-install-recommends /check/weir.deb >&2
state=$(dpkg-query -W -f='${db:Status-Status}' weir)
[[ $state == installed ]] || die "the package is $state"
dpkg --verify weir || die 'the files are not those that the package names'
# Its dependencies bring every library that it needs, and it has no capabilities.
missing=$(ldd /usr/bin/weir | grep 'not found' || true)
[[ -z $missing ]] || die "$missing"

said=$(weir --version)
[[ $said =~ ^weir\ [0-9.]+(\ \([0-9a-f]+\))?$ ]] || die "weir --version says '$said'"
read -r _ version _ <<<"$said"
[[ $(dpkg-query -W -f='${Version}' weir) == "$version"[-~]* ]] ||
    die "the package is not of version '$version'"
for page in weir weir-capture weir-gen weir-demo weir-lab; do
    zcat "/usr/share/man/man1/$page.1.gz" | grep -q '^\.TH' || die "no man page $page(1)"
done
zcat /usr/share/man/man1/weir-capture.1.gz | grep -q 'snaplen' || die 'weir-capture(1) does not know --snaplen'
for file in docs/serve.md docs/containers.md examples/compose.yaml examples/kubernetes/daemonset.yaml examples/grafana/weir-flows.json docs/glossary.md docs/from-tcpdump.md copyright changelog.Debian.gz changelog.gz crates.txt.gz README.Debian README.md ARCHITECTURE.md docs/decisions/0001-header-area.md; do
    [[ -s /usr/share/doc/weir/$file ]] || die "no /usr/share/doc/weir/$file"
done
for file in bash-completion/completions/weir zsh/vendor-completions/_weir fish/vendor_completions.d/weir.fish; do
    [[ -s /usr/share/$file ]] || die "no /usr/share/$file"
done
# The daemon: systemd finds the unit, it is not enabled, and its file allows no access.
looked=$(dpkg -L weir | grep -E '^(/usr)?/lib/s|^/etc' | xargs -I{} find {} -maxdepth 0 -type f | sort)
[[ $looked == /etc/weir/weir.toml$'\n'/usr/lib/systemd/system/weir-guest.service$'\n'/usr/lib/systemd/system/weir.service$'\n'/usr/lib/sysusers.d/weir.conf ]] ||
    die "where systemd and the administrator look, the package puts: $looked"
[[ $(dpkg-query -W -f='${Conffiles}' weir) == *' /etc/weir/weir.toml '* ]] || die '/etc/weir/weir.toml is no conffile'
[[ $(stat -c '%a %U' /etc/weir/weir.toml) == '640 root' ]] || die "$(ls -l /etc/weir/weir.toml)"
allowed=$(grep -Ev '^(#.*)?$' /etc/weir/weir.toml || true)
[[ -z $allowed ]] || die "the file allows something: $allowed"
grep -qx 'ExecStart=/usr/bin/weir serve .*' /usr/lib/systemd/system/weir.service || die 'the unit runs another program'
grep -qx 'ExecStart=/usr/bin/weir guest .*' /usr/lib/systemd/system/weir-guest.service || die 'the unit of guests runs another program'
enabled=$(find /etc/systemd -name 'weir*' 2>/dev/null || true)
[[ -z $enabled ]] || die "installing it enables the unit: $enabled"

printf 'ledger gen %s\n' "$(weir capture gen:size=64,flows=10,rate=1Mpps --frames 1000 --json)"
printf 'ledger trace %s\n' "$(weir capture file:/check/trace.pcapng --json)"
weir capture file:/check/trace.pcapng --write /check/copy.pcapng
[[ -s /check/copy.pcapng ]] || die 'weir wrote no file'

dpkg -L weir | sort >/check/owned
apt-get remove -y -qq weir >&2
[[ -s /etc/weir/weir.toml ]] || die 'removed, and with it the file of the administrator'
apt-get purge -y -qq weir >&2
known=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n')
[[ $known != *weir* ]] || die 'dpkg still knows the package'
paths >/check/purged
stayed=$(comm -13 /check/before /check/owned | comm -12 - /check/purged)
[[ -z $stayed ]] || die "purged, and still there: $stayed"
apt-get autoremove --purge -y -qq >&2
paths >/check/after
stayed=$(comm -13 /check/before /check/after)
[[ -z $stayed ]] || die "not there before the package was installed: $stayed"

# All packages, with programs that use them: an unchanged tool, a compiler, Python.
packages=(weir libweir1 libweir-dev python3-weir)
debs=("${packages[@]/#//check/}")
debs=("${debs[@]/%/.deb}")
# The dependencies stay, so that the removals below remove only our packages.
apt-get satisfy -y -qq --no-install-recommends 'tcpdump, tcc, libc6-dev, pkgconf, python3' \
    "$(dpkg-deb -f /check/weir.deb Depends)" "$(dpkg-deb -f /check/libweir1.deb Depends)" >&2
apt-get autoclean -qq >&2
paths >/check/before
apt-get install -y -qq --no-install-recommends "${debs[@]}" >&2
for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package") == installed ]] || die "$package is not installed"
    dpkg --verify "$package" || die "the files are not those that $package names"
    for file in copyright changelog.gz changelog.Debian.gz; do
        [[ -s /usr/share/doc/$package/$file ]] || die "no /usr/share/doc/$package/$file"
    done
done
libraries=(/usr/lib/*/libweir.so.1 /usr/lib/*/weir/libweirpcap.so)
missing=$(ldd "${libraries[@]}" | grep 'not found' || true)
[[ -z $missing ]] || die "$missing"
[[ $(ldconfig -p) == *libweir.so.1* ]] || die 'the loader does not know libweir.so.1'

mkdir /tmp/weir
export WEIR_SOCKET=/tmp/weir/socket
printf '[sources.trace]\nsource = "file:/check/trace.pcapng"\neverybody = true\nring_mib = 64\n' >/tmp/weir/weir.toml
weir serve --config /tmp/weir/weir.toml --socket "$WEIR_SOCKET" >/tmp/weir/log 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>/dev/null || true' EXIT
for ((tries = 0; tries < 300; tries++)); do
    [[ ! -S $WEIR_SOCKET ]] || break
    kill -0 "$daemon" || die "the daemon has ended: $(cat /tmp/weir/log)"
    sleep 0.1
done
timeout 60 weir run -- tcpdump -Z root -ni host:trace -w /tmp/weir/tool.pcap 2>/tmp/weir/tcpdump ||
    die "tcpdump: $(cat /tmp/weir/tcpdump)"
printf 'frames tcpdump %s\n' "$(tcpdump -nr /tmp/weir/tool.pcap --count 2>/dev/null | grep -Eo '^[0-9]+')"
read -ra flags <<<"$(pkg-config --cflags --libs weir)"
tcc -Wall -o /tmp/weir/program /check/dist-inside.c "${flags[@]}"
printf 'frames c %s\n' "$(timeout 60 /tmp/weir/program host:trace)"
printf 'frames python %s\n' "$(cd / && timeout 60 python3 -c 'if True:
    import importlib.metadata, weir
    assert importlib.metadata.version("weir"), "no version"
    with weir.open("host:trace") as feed:
        print(sum(1 for frame in feed))')"
extcap=$(dpkg -L weir | grep '/extcap/')
listed=$("$extcap" --extcap-interfaces)
[[ $listed == *'host:trace'* ]] || die "Wireshark would be told: $listed"
kill "$daemon"
wait "$daemon" || die "the daemon ended with an error: $(cat /tmp/weir/log)"
trap - EXIT

nothing_left() { # ORDER
    known=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n')
    [[ $known != *weir* ]] || die "$1: dpkg still knows $(grep weir <<<"$known")"
    paths >/check/after
    stayed=$(comm -13 /check/before /check/after)
    [[ -z $stayed ]] || die "$1: not there before the packages were installed: $stayed"
    [[ $(ldconfig -p) != *libweir* ]] || die "$1: the loader still knows libweir"
}
# Packages that need the library are removed with it; the program does not need it.
apt-get remove -y -qq libweir1 >&2
left=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' | grep weir)
[[ $left == 'weir installed' ]] || die "libweir1 removed, and then there are: $left"
said=$(weir run -- tcpdump --version 2>&1 || true)
[[ $said == *libweir1* ]] || die "without its library, weir run says: $said"
apt-get purge -y -qq weir >&2
nothing_left 'libweir1 first'
dpkg -i "${debs[@]}" >&2
for package in python3-weir libweir-dev libweir1 weir; do dpkg --remove "$package" >&2; done
dpkg --purge "${packages[@]}" >&2
nothing_left 'one by one, then purged'
dpkg -i "${debs[@]}" >&2
apt-get purge -y -qq "${packages[@]}" >&2
nothing_left 'purged at once'
