#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Latency of peerbus::fabric over the loopback interface beside fi_pingpong (Debian: libfabric-bin) of the same
# endpoint type, in turns: bash benchmarks/fabric/compare.sh [FABRIC_PUT] [TURNS]
set -euo pipefail
program=${1:-build/release/benchmarks/fabric_put}
turns=${2:-3}
for ((turn = 1; turn <= turns; ++turn)); do
  "$program" --latency-bytes 8 --blocks 3
  port=$((20000 + RANDOM % 20000))
  taskset -c 0 fi_pingpong -p "tcp;ofi_rxm" -e rdm -S 8 -I 20000 -B "$port" >/dev/null &
  server=$!
  sleep 1
  taskset -c 1 fi_pingpong -p "tcp;ofi_rxm" -e rdm -S 8 -I 20000 -P "$port" 127.0.0.1
  wait "$server"
done
