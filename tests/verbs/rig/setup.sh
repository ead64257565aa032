#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# setup.sh guest SECONDS JOBS RESULTS: runs the verbs jobs on this host if that has an RDMA device with an
# active port, else in guests. setup.sh two_guests: each job as two ranks on each of two guests. Where no guest can be
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

status=0
if [ "$where" = guest ]; then
  # A guest for each of a few cores, which share the jobs. Guests of one processor: emulated ones that share memory keep
  # each other waiting, and two took a third more CPU time.
  guests=$(nproc)
  if [ "$guests" -gt 4 ]; then guests=4; fi
  echo "verbs are tested on soft-RoCE, in guests: $guests"
  started=()
  for ((guest = 0; guest < guests; ++guest)); do
    "${peerbus_dies_with_this[@]}" "$peerbus_rig/guest.sh" --cpus 1 --memory 4096 --timeout "$seconds" --out "$results" -- \
      "${run_jobs[@]}" >>"$results/guest.log" 2>&1 &
    started+=($!)
  done
  for guest in "${started[@]}"; do wait "$guest" || status=$?; done
  cat "$results/guest.log"
else
  # Ranks start a job when they have ended the one before.
  # shellcheck disable=SC2016
  "${peerbus_dies_with_this[@]}" "$peerbus_rig/two_hosts.sh" --timeout "$seconds" --out "$results" -- \
    bash -c 'exec "$1" "$2" "$3/rank_$RANK"' bash "${run_jobs[@]}" 2>&1 | tee "$results/guest.log"
  status=$?
fi
if [ $status -eq 0 ]; then exit 0; fi
# The jobs that ended have their say; those that did not show guest.log and fail.
while IFS=$'\t' read -r name _; do
  if ! ls "$results/$name.status" "$results"/rank_[0-9]*/"$name.status" >/dev/null 2>&1; then exit 0; fi
done <"$jobs"
exit $status
