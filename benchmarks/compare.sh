#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs peerbus and what it is compared with in turns, and prints the ratios of their times:
#   bash benchmarks/compare.sh [--rounds R] [--json FILE] [--build DIR] [CONFIGURATION...]
# A configuration is ep:RANKS:TOKENS:expert|rank:int8|bf16 (dispatch and combine against MPI, one
# row per (token, expert) or per (token, rank)), deep_ep:RANKS:TOKENS:copy|zero_copy|normal (the
# same, bf16, by DeepEP's low-latency or normal calls; but for zero_copy, combine takes outputs from
# memory of the caller, as MPI does) or put:8|7680 (a put of so many bytes and its flag against UCX).
# The default: ep:2:T:expert:int8|bf16 for T of 128, 32, 8 and 1, ep:2:128:rank:int8|bf16,
# ep:8:32:expert:int8, ep:64:8:expert:int8, deep_ep:2:128:copy|zero_copy|normal, put:8 and put:7680.
# Arguments of ep_bench, deep_ep_bench and mpi_ep alike, such as `--hidden 2048`, follow a `--`.

set -u -o pipefail
started_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

help_lines=3,11
takes_shared=yes
is_item() {
  local number='[1-9][0-9]{0,5}'
  [[ $1 =~ ^ep:$number:$number:(expert|rank):(int8|bf16)$ ]] ||
    [[ $1 =~ ^deep_ep:$number:$number:(copy|zero_copy|normal)$ || $1 =~ ^put:(8|7680)$ ]]
}
source benchmarks/support/compare_options.sh || exit 1
read_options "$@"
if [ ${#items[@]} -eq 0 ]; then
  for tokens in 128 32 8 1; do
    items+=("ep:2:$tokens:expert:int8" "ep:2:$tokens:expert:bf16")
  done
  items+=(ep:2:128:rank:int8 ep:2:128:rank:bf16 ep:8:32:expert:int8 ep:64:8:expert:int8
    deep_ep:2:128:copy deep_ep:2:128:zero_copy deep_ep:2:128:normal put:8 put:7680)
fi

how_to_build="cmake --preset release && cmake --build --preset release --target"
programs=$build/benchmarks
source benchmarks/support/turns.sh || exit 1
need compare_peers "build it with: $how_to_build compare_peers" || exit 1
declare -A have=([ep]=no [deep_ep]=no [put]=no)
declare -A program_of=([ep]=ep_bench [deep_ep]=deep_ep_bench)
for kind in ep deep_ep; do
  if wants "$kind" && need "${program_of[$kind]}" "build it with: $how_to_build ${program_of[$kind]}" &&
    need mpi_ep "the peer for $kind needs MPI (Debian: libopenmpi-dev openmpi-bin), then: $how_to_build mpi_ep"; then
    if command -v mpirun >/dev/null; then
      have[$kind]=yes
    else
      echo "compare.sh: mpirun is missing (Debian: openmpi-bin)" >&2
    fi
  fi
done
if wants put && need put_bench "build it with: $how_to_build put_bench"; then
  if "$programs/put_bench" --contenders ucx --latency-bytes 8 --rounds 1 --blocks 1 >/dev/null 2>&1; then
    have[put]=yes
  else
    echo "compare.sh: the peer for put needs UCX (Debian: libucx-dev), then: $how_to_build put_bench" >&2
  fi
fi

# Settings of Open MPI among which a short trial chooses, for each configuration: copies through
# the kernel, the same with all messages at once, copies through shared memory, UCX underneath.
cma="--mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism cma"
declare -A settings=(
  [cma]=$cma
  [linear]="$cma --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_alltoallv_algorithm 1"
  [shm]="--mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none"
  [ucx]="--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any"
)
if ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
  settings=([default]="")
fi

# All rounds of what `ours` and `theirs` do now. They take minutes, so a terminal shows where they are.
all_rounds() { # all_rounds <configuration>
  local round
  for ((round = 0; round < rounds; ++round)); do
    if [ -t 2 ]; then
      echo "compare.sh: $1, round $((round + 1)) of $rounds$(time_left "$rounds_done" "$rounds_wanted" "$SECONDS")" >&2
    fi
    in_turns "$round" ours theirs
    rounds_done=$((rounds_done + 1))
  done
}

compare_ep() { # compare_ep <configuration>
  local kind ranks tokens rows codec iterations layout title files how=""
  IFS=: read -r kind ranks tokens rows codec <<<"$1"
  files=${1//:/_}
  local mode=()
  if [ "$kind" = deep_ep ]; then
    codec=bf16
    case $rows in
      copy) how="low latency, copy" rows=expert ;;
      zero_copy) how="low latency, zero_copy" rows=expert mode=(--zero-copy) ;;
      normal) how=normal rows=rank mode=(--mode normal) ;;
    esac
  fi
  iterations=$((20000 / (tokens * ranks)))
  if [ "$iterations" -gt 2000 ]; then iterations=2000; fi
  if [ "$ranks" -gt "$(nproc)" ]; then iterations=$((iterations / 2)); fi
  if [ "$iterations" -lt 20 ]; then iterations=20; fi
  layout=compact
  if [ "$rows" = rank ]; then layout=rank_major; fi
  local both=(--tokens "$tokens" --codec "$codec" --warmup 5 "${shared[@]}")

  local best
  if [ -t 2 ]; then echo "compare.sh: $1, a trial of each setting of MPI" >&2; fi
  choose_setting "$ranks" --rows "$rows" "${both[@]}" --iters $((iterations / 4)) || return 1
  # mpi_ep does the work of experts between its operations, and reads no weights.
  local program=("$programs/ep_bench" --layout "$layout" --between expert)
  if [ "$kind" = deep_ep ]; then program=("$programs/deep_ep_bench" --alone "${mode[@]}"); fi
  ours() {
    run_quietly 300 "${program[@]}" --ranks "$ranks" "${both[@]}" --iters "$iterations" \
      --json "$results/$files.ours.$1" || complain "${program[0]##*/} failed"
  }
  theirs() {
    run_mpi_ep 300 "$best" "$ranks" "$results/$files.theirs.$1" --rows "$rows" "${both[@]}" \
      --iters "$iterations" || complain "mpi_ep failed"
  }
  title="$ranks ranks, $tokens tokens, $codec, row per (token, $rows)"
  if [ "$kind" = deep_ep ]; then title="$how, $ranks ranks, $tokens tokens, $codec"; fi
  for operation in dispatch combine; do
    line "$operation us, $title" "$files" "/${operation}_us/p50" "/${operation}_us/p50" \
      "MPI ($best)"
  done
  all_rounds "$1"
}

compare_put() { # compare_put <configuration>
  local bytes=${1#put:} files=${1//:/_}
  run_put_bench() { # run_put_bench <contenders> <file>
    run_quietly 120 "$programs/put_bench" --contenders "$1" --latency-bytes "$bytes" --json "$2" ||
      complain "put_bench failed"
  }
  ours() { run_put_bench peerbus "$results/$files.ours.$1"; }
  theirs() { run_put_bench ucx "$results/$files.theirs.$1"; }
  line "put_signal ns, $bytes B, payload read" "$files" /latency/0/one_way_ns/p50 \
    /latency/0/one_way_ns/p50 "UCX (put, fence, flag)"
  line "put_signal ns, $bytes B, payload read" "$files" /latency/0/one_way_ns/p50 \
    /latency/1/one_way_ns/p50 "UCX (payload polled, no order promised)"
  # The number of a signal is a payload of 8 bytes of its own.
  if [ "$bytes" -eq 8 ]; then
    line "signal ns, its number read" "$files" /latency/2/one_way_ns/p50 /latency/1/one_way_ns/p50 \
      "UCX (8 B put, polled)"
  fi
  all_rounds "$1"
}

status=0
rounds_done=0
rounds_wanted=$((${#items[@]} * rounds))
SECONDS=0
for configuration in "${items[@]}"; do
  kind=${configuration%%:*}
  if [ "${have[$kind]}" = no ]; then
    status=1
    rounds_wanted=$((rounds_wanted - rounds))
    continue
  fi
  case $kind in
    ep | deep_ep) compare_ep "$configuration" ;;
    put) compare_put "$configuration" ;;
  esac || status=1
done
print_table "$json" || status=1
exit "$status"
