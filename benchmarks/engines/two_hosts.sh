#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# all2all.py between two hosts of two ranks each, with and without relay:
#   PEERBUS_LIBRARY=.../libpeerbus.so bash benchmarks/engines/two_hosts.sh [ARGUMENT of all2all.py]...
# The hosts are namespaces (benchmarks/support/two_hosts.sh). PYTHON names the Python with torch 2
# [python3], which may be several words.

set -u -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
source benchmarks/support/two_hosts.sh || exit 1
become_two_hosts "$PWD/benchmarks/engines/two_hosts.sh" "$@"

export PYTHONPATH=$PWD/examples/embed/python MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 WORLD_SIZE=4
read -ra python <<<"${PYTHON:-python3}"
ranks=() status=0
for rank in 0 1 2 3; do
  host=() interface=far0
  if [ "$rank" -ge 2 ]; then host=(on_second) interface=far1; fi
  RANK=$rank GLOO_SOCKET_IFNAME=$interface ${host[@]+"${host[@]}"} "${python[@]}" "$PWD/benchmarks/engines/all2all.py" \
    --link "$interface" --relay never always "$@" &
  ranks+=($!)
done
for rank in "${ranks[@]}"; do wait "$rank" || status=1; done
exit "$status"
