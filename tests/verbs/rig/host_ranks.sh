#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# host_ranks.sh HOST PER_HOST OUT COMMAND...: the ranks of one of two guests; see two_hosts.sh.

set -u
host=$1
per_host=$2
out=$3
shift 3

export WORLD_SIZE=$((2 * per_host)) LOCAL_WORLD_SIZE=$per_host
export MASTER_ADDR=10.9.0.1 MASTER_PORT=29500
started=()
for ((local_rank = 0; local_rank < per_host; ++local_rank)); do
  rank=$((host * per_host + local_rank))
  RANK=$rank LOCAL_RANK=$local_rank GROUP_RANK=$host "$@" >"$out/rank_$rank.log" 2>&1 &
  started+=($!)
done

failed=0
for ((local_rank = 0; local_rank < per_host; ++local_rank)); do
  wait "${started[local_rank]}"
  status=$?
  echo "rank $((host * per_host + local_rank)): status $status"
  if [ $status -ne 0 ]; then failed=1; fi
done

# The other host's last packets may still want an answer from this one.
echo $failed >"$out/host_$host.done"
until [ -s "$out/host_$((1 - host)).done" ]; do sleep 0.1; done
exit $failed
