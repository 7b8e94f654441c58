#!/usr/bin/env bash
# Checks with the host's tools that FILE has every ping that check.sh captured in the guest (LEDGER of that run), with
# its VLAN tags.
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../common.sh"

file=${1:?usage: tests/guest/file.sh FILE LEDGER}
ledger=${2:?usage: tests/guest/file.sh FILE LEDGER}
for tool in capinfos tshark jq; do
    command -v $tool >/dev/null || die "$tool is missing; run: make setup"
done
export LC_ALL=C

complaints=$(mktemp)
trap 'rm -f "$complaints"' EXIT
# tshark reads a damaged file as far as it goes, and warns that it runs as root.
whole() {
    if grep -i -e 'cut short' -e damaged -e invalid -e truncated -e corrupt "$complaints"; then
        die "$1 finds the guest's pcapng file wrong"
    fi
}

delivered=$(jq .delivered "$ledger")
frames=$(capinfos -TMrc "$file" 2>"$complaints" | cut -f2) || { cat "$complaints" >&2; die "capinfos does not read $file"; }
whole capinfos
[[ $frames == "$delivered" ]] || die "capinfos finds ${frames:-no} frames in the guest's file, the ledger says $delivered"

# Requests and replies of four pings each: no tag, one, and one in another.
tags=$(tshark -r "$file" -Y icmp -T fields -E separator=, -e ieee8021ad.id -e vlan.id 2>"$complaints" |
    sort | uniq -c | awk '{ print $2, $1 }') || { cat "$complaints" >&2; die "tshark does not read $file"; }
whole tshark
[[ $tags == $', 8\n,100 8\n200,300 8' ]] || die "pings by outer,inner VLAN should be 8 each of ',', ',100' and '200,300', but tshark finds:
$tags"
say "guest: capinfos and tshark read its file: $frames frames, pings with no tag, one and two"
