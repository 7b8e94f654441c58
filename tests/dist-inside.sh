#!/usr/bin/env bash
# The half of dist.sh that runs inside the clean system: installs /check/weir.deb, uses it, purges it.
# Prints `ledger NAME JSON` lines for dist.sh to judge. The clean system has nothing of ours to source.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
die() {
    printf 'error: in the clean system: %s\n' "$*" >&2
    exit 1
}
# Every path but those of apt, dpkg and the kernel, which keep their own books of what they did.
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
# Every library that it asks for is there by what it depends on, and no capability came with it.
missing=$(ldd /usr/bin/weir | grep 'not found' || true)
[[ -z $missing ]] || die "$missing"

version=$(weir --version)
[[ $version == 'weir '[0-9]* ]] || die "weir --version says '$version'"
[[ $(dpkg-query -W -f='${Version}' weir) == "${version#weir }"[-~]* ]] ||
    die "the package is not of version '$version'"
for page in weir weir-capture weir-gen weir-demo weir-lab; do
    zcat "/usr/share/man/man1/$page.1.gz" | grep -q '^\.TH' || die "no man page $page(1)"
done
zcat /usr/share/man/man1/weir-capture.1.gz | grep -q 'snaplen' || die 'weir-capture(1) does not know --snaplen'
for file in docs/serve.md docs/containers.md examples/compose.yaml examples/kubernetes/daemonset.yaml copyright changelog.Debian.gz changelog.gz crates.txt.gz README.Debian README.md.gz ARCHITECTURE.md.gz; do
    [[ -s /usr/share/doc/weir/$file ]] || die "no /usr/share/doc/weir/$file"
done
for file in bash-completion/completions/weir zsh/vendor-completions/_weir fish/vendor_completions.d/weir.fish; do
    [[ -s /usr/share/$file ]] || die "no /usr/share/$file"
done
# The daemon: for systemd to find, not enabled, and with a file that allows nobody anything.
looked=$(dpkg -L weir | grep -E '^(/usr)?/lib/s|^/etc' | xargs -I{} find {} -maxdepth 0 -type f | sort)
[[ $looked == /etc/weir/weir.toml$'\n'/usr/lib/systemd/system/weir.service$'\n'/usr/lib/sysusers.d/weir.conf ]] ||
    die "where systemd and the administrator look, the package puts: $looked"
[[ $(dpkg-query -W -f='${Conffiles}' weir) == *' /etc/weir/weir.toml '* ]] || die '/etc/weir/weir.toml is no conffile'
[[ $(stat -c '%a %U' /etc/weir/weir.toml) == '640 root' ]] || die "$(ls -l /etc/weir/weir.toml)"
allowed=$(grep -Ev '^(#.*)?$' /etc/weir/weir.toml || true)
[[ -z $allowed ]] || die "the file allows something: $allowed"
grep -qx 'ExecStart=/usr/bin/weir serve .*' /usr/lib/systemd/system/weir.service || die 'the unit runs another program'
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
