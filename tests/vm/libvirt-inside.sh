#!/bin/sh
# Runs in the guest of tests/vm/libvirt.sh: a broker, and one reader that goes on after each pause of the host.
set -eu
modprobe virtio_pci
modprobe virtio_console
weir guest &
until [ -S /run/weir/weir.sock ]; do sleep 0.1; done
until weir capture host:lan --follow --frames 1000 --json >/tmp/all.json 2>/tmp/all.err; do sleep 0.2; done &
reader=$!
until grep -q 'captured 500 ' /tmp/all.err; do sleep 0.1; done
echo 'READ 500'
wait "$reader"
echo "DONE $(jq -c '[.delivered, .unexplained]' /tmp/all.json)"
# The host ends the machine.
sleep 600
