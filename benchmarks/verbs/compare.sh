#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# peerbus over an RDMA device, in turns with what there is for the same device, as ratios of times:
# perftest's ib_write_lat and ib_write_bw with the same sizes and queue depth, and MPI over UCX.
#   bash benchmarks/verbs/compare.sh [OPTION...] [put] [rows] [ep] [memory]
#     --rounds R       of each line (5)             --json FILE     also write the table there
#     --device NAME    (the first that will do)     --gid-index N   (the best of its port)
#     --depth N        requests on their way (64)   --build DIR     (build/release)
# Both ranks of put and rows are on this host, and so are the 4 of ep. Where it has no device:
#   tests/verbs/rig/guest.sh --timeout 1800 -- bash benchmarks/verbs/compare.sh

set -u -o pipefail
started_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

help_lines=3,10
device=""
gid=""
depth=64
declare -A variable_of=([--device]=device [--gid-index]=gid [--depth]=depth)
is_item() { [[ $1 =~ ^(put|rows|ep|memory)$ ]]; }
source benchmarks/support/compare_options.sh || exit 1
read_options "$@"
require_numbers --depth
[[ -z $gid || $gid =~ ^[0-9]+$ ]] || refuse "--gid-index: '$gid' given, expected a number"
if [ ${#items[@]} -eq 0 ]; then items=(put rows ep memory); fi

how_to_build="cmake --preset release && cmake --build --preset release --target"
programs=$build/benchmarks
source benchmarks/support/turns.sh || exit 1
need compare_peers "build it with: $how_to_build compare_peers" || exit 1
need put_bench "build it with: $how_to_build put_bench (Debian: libibverbs-dev)" || exit 1

# The port that both are to use, as the library finds it: "rxe0 port 1 GID 1".
chosen=()
if [ -n "$device" ]; then chosen+=(--device "$device"); fi
if [ -n "$gid" ]; then chosen+=(--gid-index "$gid"); fi
put_bench=("$programs/put_bench" --transport verbs)
if ! run_quietly 60 "${put_bench[@]}" "${chosen[@]}" --parts latency --latency-bytes 8 --rounds 1 --blocks 1; then
  complain "put_bench does not work here"
  exit 1
fi
read -r device port gid < <(sed -n 's/^put_bench  \(.*\) port \([0-9]*\) GID \([0-9]*\),.*/\1 \2 \3/p' "$results/output")
chosen=(--device "$device" --gid-index "$gid")
echo "device: $device, port $port, GID index $gid; depth $depth; $(nproc) cores, $(uname -r)"

status=0
if wants put || wants rows; then
  for tool in ib_write_lat ib_send_lat ib_write_bw; do
    if ! command -v "$tool" >/dev/null; then
      echo "compare.sh: $tool is missing (Debian: perftest)" >&2
      exit 1
    fi
  done
fi

on_core() { # on_core <0 or 1> <command>...: where put_bench has its rank of that number
  local core=$1
  shift
  if [ "$(nproc)" -lt 2 ]; then core=0; fi
  taskset -c "$core" "$@"
}
# Both sides of a perftest program; the second, which reports, where put_bench's rank 0 is.
perftest() { # perftest <port> <tool> <argument>...
  local socket=$1 tool=$2 server
  local both=(-d "$device" -i "$port" -x "$gid" -F -p "$socket" "${@:3}")
  on_core 1 timeout --kill-after=5 120 "$tool" "${both[@]}" </dev/null >/dev/null 2>&1 &
  server=$!
  local tries
  for ((tries = 0; tries < 100; ++tries)); do # Until it listens.
    if grep -q "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$socket") [0-9A-F]*:0000 0A " \
      /proc/net/tcp /proc/net/tcp6 2>/dev/null; then break; fi
    sleep 0.05
  done
  on_core 0 timeout --kill-after=5 120 "$tool" "${both[@]}" 127.0.0.1 </dev/null >"$results/output" 2>&1
  local found=$?
  kill "$server" 2>/dev/null
  wait "$server" 2>/dev/null
  return $found
}
socket=18515
# Leaves {"us": ..., "least_us": ...} in <file>, from the row of perftest's table that begins with the
# size.
perftest_us() { # perftest_us <file> <bytes> <awk expression>,<awk expression> <tool> <argument>...
  socket=$((socket + 1))
  perftest "$socket" "$4" -s "$2" "${@:5}" || complain "$4 failed"
  awk -v bytes="$2" '$1 == bytes && $2 ~ /^[0-9]+$/ { printf "{\"us\": %.6f, \"least_us\": %.6f}\n", '"$3"' }' \
    "$results/output" >"$1"
}

# All rounds of what `ours` and `theirs` do now; it takes minutes, so it says where it is.
all_rounds() { # all_rounds <what>
  local round
  for ((round = 0; round < rounds; ++round)); do
    echo "compare.sh: $1, round $((round + 1)) of $rounds" >&2
    in_turns "$round" ours theirs
  done
}

compare_latency() { # compare_latency <program> <bytes> <title>
  local program=$1 bytes=$2 files=$1_$2
  ours() {
    run_quietly 120 "${put_bench[@]}" "${chosen[@]}" --depth "$depth" --parts latency --blocks 1 \
      --latency-bytes "$bytes" --rounds 1000 --json "$results/$files.ours.$1" || complain "put_bench failed"
  }
  theirs() { perftest_us "$results/$files.theirs.$1" "$bytes" '$5, $3' "$program" -n 1000; } # t_typical, t_min
  line "$3" "$files" /latency/0/one_way_us/p50 /us "$program"
  # What the path takes when nobody needs the core of a side that polls, as soft-RoCE itself does.
  line "$3, the least of the run" "$files" /latency/0/one_way_us/min /least_us "$program"
  all_rounds "$3"
}

# MB in perftest's table are 2^20 bytes. Several blocks of ours, as many messages of theirs.
compare_stream() { # compare_stream <bytes> <messages> <part>
  local bytes=$1 messages=$2 files=bw_$1 blocks=3
  local sizes=(--bandwidth-bytes "$bytes" --volume $((bytes * messages)) --row-bytes "$bytes" --rows "$messages")
  ours() {
    run_quietly 300 "${put_bench[@]}" "${chosen[@]}" --depth "$depth" --parts "$part" "${sizes[@]}" \
      --blocks $blocks --json "$results/$files.ours.$1" || complain "put_bench failed"
  }
  theirs() {
    perftest_us "$results/$files.theirs.$1" "$bytes" 'bytes / $4 / 1.048576, 0' ib_write_bw \
      -n $((messages * blocks)) -t "$depth"
  }
  local part=$3
  if [ "$part" = rows ]; then
    line "us a message, $messages of $bytes B apart from each other" "$files" \
      /bandwidth/0/us_per_message/p50 /us "ib_write_bw"
    line "us a message, $messages of $bytes B side by side" "$files" \
      /bandwidth/1/us_per_message/p50 /us "ib_write_bw"
  else
    line "us a message, $messages of $bytes B" "$files" /bandwidth/0/us_per_message/p50 /us \
      "ib_write_bw"
  fi
  all_rounds "messages of $bytes B"
}

packets_sent() {
  cat "/sys/class/infiniband/$device/ports/$port/hw_counters/sent_pkts" 2>/dev/null ||
    cat "/sys/class/infiniband/$device/ports/$port/counters/port_xmit_packets" 2>/dev/null || echo 0
}

# UCX connects by unreliable datagrams, which do not come through with every address of soft-RoCE. So
# each is tried, and both sides use the one that MPI is fastest with.
compare_ep() {
  need ep_bench "build it with: $how_to_build ep_bench" &&
    need mpi_ep "the peer needs MPI (Debian: libopenmpi-dev openmpi-bin), then: $how_to_build mpi_ep" || return 1
  if ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    echo "compare.sh: mpirun of Open MPI is missing (Debian: openmpi-bin)" >&2
    return 1
  fi
  local ranks=4 best before packets ours_gid operation
  local both=(--tokens 32 --hidden 1024 --top-k 4 --experts 16 --codec int8 --warmup 3)
  local over="--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any
    -x UCX_TLS=rc,self -x UCX_NET_DEVICES=$device:$port -x UCX_UD_TIMEOUT=10s"
  local linear="--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_alltoallv_algorithm 1"
  declare -gA settings=()
  local index
  for index in "$gid" $([ "$gid" = 0 ] || echo 0); do
    settings[rc.gid$index]="$over -x UCX_IB_GID_INDEX=$index"
    settings[linear.gid$index]="$over -x UCX_IB_GID_INDEX=$index $linear"
  done
  before=$(packets_sent)
  choose_setting "$ranks" "${both[@]}" --iters 10 || return 1
  packets=$(($(packets_sent) - before))
  if [ "$packets" -lt 1000 ]; then
    echo "compare.sh: MPI did not use $device: only $packets packets were sent" >&2
    return 1
  fi
  ours_gid=${best#*.gid}
  echo "MPI: ${settings[$best]}" | tr -s ' \n' ' '
  echo
  echo "MPI's trials sent $packets packets over $device; ours with GID index $ours_gid as well"
  ours() {
    run_quietly 300 "$programs/ep_bench" --transport verbs --device "$device" --gid-index "$ours_gid" \
      --ranks "$ranks" "${both[@]}" --iters 40 --json "$results/ep.ours.$1" || complain "ep_bench failed"
  }
  theirs() {
    run_mpi_ep 300 "$best" "$ranks" "$results/ep.theirs.$1" "${both[@]}" --iters 40 || complain "mpi_ep failed"
  }
  for operation in dispatch combine pair; do
    line "$operation us, $ranks ranks, 32 tokens, hidden 1024, top-4 of 16, int8" ep "/${operation}_us/p50" \
      "/${operation}_us/p50" "MPI ($best)"
  done
  all_rounds "dispatch and combine"
}

if wants put; then
  for size in 2 8 64; do
    compare_latency ib_write_lat $size "put + signal us, $size B"
  done
  # A message that completes at its receiver, as our signals do and ib_write_lat's writes do not.
  compare_latency ib_send_lat 8 "put + signal us, 8 B, beside a send"
  compare_stream 65536 256 bandwidth
  compare_stream 1048576 16 bandwidth
  compare_stream 4194304 6 bandwidth
fi
if wants rows; then compare_stream 7680 1024 rows; fi
if wants ep; then compare_ep || status=1; fi
print_table "$json" || status=1
if wants memory; then
  "${put_bench[@]}" "${chosen[@]}" --depth "$depth" --parts memory || status=1
fi
exit "$status"
