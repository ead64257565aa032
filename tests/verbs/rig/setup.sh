#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# setup.sh guest SECONDS JOBS RESULTS: runs the verbs jobs on this host if that has an RDMA device with an
# active port, else in a guest. setup.sh two_guests: each job as two ranks on each of two guests. Where no guest can be
# had it leaves RESULTS/not_tested, which says why, and exits with 77 (skipped), or fails if the environment has CI=true.

set -u -o pipefail
# shellcheck source-path=SCRIPTDIR source=prepare.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare.sh" || exit 1
where=$1
seconds=$2
jobs=$3
results=$4

rm -rf "$results"
mkdir -p "$results" || exit 1
run_jobs=("$peerbus_rig/run_jobs.sh" "$jobs" "$results")

if [ "$where" = guest ] && cat /sys/class/infiniband/*/ports/*/state 2>/dev/null | grep -q ACTIVE; then
  echo "verbs are tested on this host's own RDMA device"
  "${peerbus_dies_with_this[@]}" timeout --kill-after=5 "$seconds" "${run_jobs[@]}" 2>&1 | tee "$results/guest.log"
  exit
fi

(peerbus_prepare_or_skip "VERBS WERE") >"$results/preparation" || {
  status=$?
  mv "$results/preparation" "$results/not_tested"
  cat "$results/not_tested"
  exit $status
}

if [ "$where" = guest ]; then
  echo "verbs are tested on soft-RoCE in a guest"
  in_guest=("$peerbus_rig/guest.sh" --memory 4096 --timeout "$seconds" --out "$results" -- "${run_jobs[@]}")
else
  # Ranks start a job when they have ended the one before.
  # shellcheck disable=SC2016
  in_guest=("$peerbus_rig/two_hosts.sh" --timeout "$seconds" --out "$results" --
    bash -c 'exec "$1" "$2" "$3/rank_$RANK"' bash "${run_jobs[@]}")
fi
"${peerbus_dies_with_this[@]}" "${in_guest[@]}" 2>&1 | tee "$results/guest.log"
status=$?
if [ $status -eq 0 ]; then exit 0; fi
# The jobs that ended have their say; those that did not show guest.log and fail.
while IFS=$'\t' read -r name _; do
  if ! ls "$results/$name.status" "$results"/rank_[0-9]*/"$name.status" >/dev/null 2>&1; then exit 0; fi
done <"$jobs"
exit $status
