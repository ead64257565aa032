#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# show_job.sh NAME RESULTS: prints what the job printed, on each of four ranks if it ran on two hosts, and exits
# with its status; 77 if verbs could not be tested here. A job that did not come to its end fails.

set -u
if [ -f "$2/not_tested" ]; then
  cat "$2/not_tested"
  exit 77
fi

# show NAME FOLDER: of one process
show() {
  local log=$2/$1.log status=$2/$1.status code what
  if [ -f "$log" ]; then cat "$log"; fi
  if [ -s "$status" ]; then
    read -r code <"$status"
    return "$code"
  fi
  if [ -f "$log" ]; then what="did not come to its end"; else what="never ran"; fi
  echo "show_job.sh: the job $1 $what" >&2
  return 125
}

code=0
if [ -f "$2/host_0.log" ]; then
  for rank in 0 1 2 3; do
    echo "--- rank $rank"
    show "$1" "$2/rank_$rank" || code=$?
  done
else
  show "$1" "$2" || code=$?
fi
if [ "$code" -eq 125 ]; then
  echo "show_job.sh: what was said where it ran:" >&2
  cat "$2/guest.log" >&2
fi
# A job's own 77 is a failure like any other: only a missing device lets a test be skipped.
if [ "$code" -eq 77 ]; then code=1; fi
exit "$code"
