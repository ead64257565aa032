#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# peerbus::fabric over the loopback interface, in turns with two other programs: latency beside fi_pingpong (Debian:
# libfabric-bin) of the same endpoint type, and puts beside a TCP stream of iperf3 (Debian: iperf3), for orientation:
#   bash benchmarks/fabric/compare.sh [PUT_BENCH] [TURNS]
set -euo pipefail
program=${1:-build/release/benchmarks/put_bench}
turns=${2:-3}

pingpong() {
  if ! command -v fi_pingpong >/dev/null; then
    echo "fi_pingpong not installed (Debian: libfabric-bin)"
    return
  fi
  local port=$((20000 + RANDOM % 20000)) server
  taskset -c 0 fi_pingpong -p "tcp;ofi_rxm" -e rdm -S 8 -I 20000 -B "$port" >/dev/null &
  server=$!
  sleep 1
  taskset -c 1 fi_pingpong -p "tcp;ofi_rxm" -e rdm -S 8 -I 20000 -P "$port" 127.0.0.1
  wait "$server"
}

# Prints one line in the form of put_bench's: a stream of 3 s in writes of 1 MiB, as its receiver counts it.
stream() {
  if ! command -v iperf3 >/dev/null; then
    echo "iperf3 not installed (Debian: iperf3)"
    return
  fi
  local port=$((20000 + RANDOM % 20000)) server result
  taskset -c 0 iperf3 --server --one-off --bind 127.0.0.1 --port "$port" >/dev/null &
  server=$!
  # Until the server listens, the client is refused at once. It says so in its JSON only, not by its exit status.
  while kill -0 "$server" 2>/dev/null; do
    result=$(taskset -c 1 iperf3 --client 127.0.0.1 --port "$port" --time 3 --length 1M --json) || true
    if [[ $result == *sum_received* ]]; then
      wait "$server"
      python3 -c '
import json, sys
rate = json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 8e6
print("%-42s%10d%10s%12.2f%10.1f" % ("TCP stream of iperf3", 1 << 20, "", (1 << 20) / rate, rate))' <<<"$result"
      return
    fi
  done
  echo "iperf3 failed: ${result:-its server did not start on port $port}"
}

for ((turn = 1; turn <= turns; ++turn)); do
  "$program" --transport fabric --latency-bytes 8 --blocks 3
  pingpong
  stream
done
