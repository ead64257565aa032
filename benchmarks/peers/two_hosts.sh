#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Dispatch and combine between two hosts of two ranks each, by peerbus over planes (shared memory on a
# host, TCP between them) and by Open MPI over the same, in turns, with the ratios of their times:
#   bash benchmarks/peers/two_hosts.sh [ROUNDS] [ARGUMENT of ep_bench and mpi_ep]...
# The hosts are network and UTS namespaces that a pair of virtual interfaces joins, so it takes root
# (or `unshare --map-root-user --net --uts` around it). They end with the script. BUILD names the build
# folder [build/release], and RELAY is what ep_bench takes as --relay [never]. Prints what iperf3
# reaches between the two, if it is installed.

set -u -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
source benchmarks/support/two_hosts.sh || exit 1
become_two_hosts "$PWD/benchmarks/peers/two_hosts.sh" "$@"

rounds=${1:-5}
shift || true
programs=${BUILD:-build/release}/benchmarks
source benchmarks/support/turns.sh || exit 1
for program in ep_bench mpi_ep compare_peers; do
  need "$program" "build it with: cmake --preset release && cmake --build --preset release --target $program" || exit 1
done

if command -v iperf3 >/dev/null; then
  iperf3 --server --one-off >/dev/null &
  sleep 0.5
  on_second iperf3 --client 10.77.0.1 --time 3 | grep receiver
fi

arguments=(--tokens 128 --hidden 7168 --codec int8 --iters 60 --warmup 5 "$@")

(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$results/secret")
export PEERBUS_SECRET_FILE=$results/secret MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 WORLD_SIZE=4
ranks_of_peerbus() { # ranks_of_peerbus <json>
  local rank ranks=() status=0
  local command=("$programs/ep_bench" --bootstrap tcp --transport planes --far fabric --ranks 4 --relay "${RELAY:-never}" --json "$1")
  for rank in 0 1; do
    RANK=$rank LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 timeout 300 "${command[@]}" "${arguments[@]}" &
    ranks+=($!)
  done
  for rank in 2 3; do
    RANK=$rank LOCAL_RANK=$((rank - 2)) LOCAL_WORLD_SIZE=2 on_second timeout 300 "${command[@]}" "${arguments[@]}" &
    ranks+=($!)
  done
  for rank in "${ranks[@]}"; do wait "$rank" || status=1; done
  return "$status"
}
ours() {
  ranks_of_peerbus "$results/run.ours.$1" </dev/null >"$results/output" 2>&1 || complain "ep_bench failed"
}

# mpirun starts its daemon on the second host by this, as it would by ssh.
printf '#!/bin/sh\nshift\nexec nsenter --target %s --net --uts -- sh -c "$*"\n' "$second" >"$results/agent"
chmod +x "$results/agent"
network=10.77.0.0/24
theirs() {
  (
    unset PEERBUS_SECRET_FILE MASTER_ADDR MASTER_PORT WORLD_SIZE
    run_quietly 300 mpirun -n 4 -H first:2,second:2 --oversubscribe --bind-to none \
      --mca plm_rsh_agent "$results/agent" --mca pml ob1 --mca btl self,vader,tcp \
      --mca btl_tcp_if_include "$network" --mca oob_tcp_if_include "$network" \
      "$programs/mpi_ep" "${arguments[@]}" --rows expert --json "$results/run.theirs.$1"
  ) || complain "mpi_ep failed"
}
for operation in dispatch combine; do
  line "$operation us, two hosts of two ranks" run "/${operation}_us/p50" "/${operation}_us/p50" \
    "MPI (tcp between hosts)"
done
for ((round = 0; round < rounds; ++round)); do in_turns "$round" ours theirs; done
print_table ""
status=$?
kill "$second"
exit "$status"
