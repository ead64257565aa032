#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# run_jobs.sh JOBS RESULTS: runs jobs one after the other, wherever there is an RDMA device.
# A line of JOBS is NAME, SECONDS, PROGRAM, ARGUMENT... with tabs between; a job leaves RESULTS/NAME.log
# and, when it is over, RESULTS/NAME.status. Several may run with the same RESULTS: each job is run by the first that
# comes to it.

set -u
# shellcheck source-path=SCRIPTDIR source=prepare.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare.sh" || exit 1
jobs=$1
results=$2
mkdir -p "$results" || exit 1

while IFS=$'\t' read -r -a words <&3; do
  name=${words[0]}
  mkdir "$results/$name.taken" 2>/dev/null || continue
  started=$SECONDS
  "${peerbus_dies_with_this[@]}" timeout --kill-after=5 "${words[1]}" "${words[@]:2}" >"$results/$name.log" 2>&1 </dev/null
  status=$?
  case $status in
    124) echo "run_jobs.sh: it did not end within ${words[1]} s" ;;
    12[89] | 1[3-9]?) echo "run_jobs.sh: ended by signal $((status - 128)) after $((SECONDS - started)) s" ;;
  esac >>"$results/$name.log"
  echo $status >"$results/$name.status"
  printf '%-32s status %3d, %3d s\n' "$name" $status $((SECONDS - started))
done 3<"$jobs"
