#!/usr/bin/env bash
# Writes an archive with this machine's Python, the package weir, and the modules that it imports, to be unpacked at a
# guest's root: some 20 MB instead of all of Python.
#
#     tests/vm/python.sh FILE      LD_LIBRARY_PATH says where libweir.so.1 is
set -euo pipefail
# shellcheck source=tests/common.sh
source "$(dirname "$0")/../common.sh"

python=$(realpath /usr/bin/python3)
{
    printf '%s\n' "$python"
    # Without site-packages, as in the guest.
    PYTHONPATH=$root/python/src PYTHONDONTWRITEBYTECODE=1 "$python" -S -c '
import sys, json, weir
for module in list(sys.modules.values()):
    if getattr(module, "__file__", None):
        print(module.__file__)
'
} >"$1.list"
# The libraries with which they are linked.
while IFS= read -r file; do
    case $file in "$python" | *.so) ldd "$file" | grep -o '/[^ )]*' || true ;; esac
done <"$1.list" | sort -u >>"$1.list.libraries"
sort -u "$1.list" "$1.list.libraries" | tar --dereference -P --transform "s|^$root/python/src/|/usr/lib/python3/|" \
    --transform "s|^$python$|/usr/bin/python3|" --transform 's|^/||' -cf "$1" -T -
rm -f "$1.list" "$1.list.libraries"
