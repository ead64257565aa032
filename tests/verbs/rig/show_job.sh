#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# show_job.sh NAME RESULTS: prints what the job printed and exits with its status; 77 if verbs could
# not be tested here. A job that did not come to its end fails.

set -u
log=$2/$1.log
status=$2/$1.status

if [ -f "$2/not_tested" ]; then
  cat "$2/not_tested"
  exit 77
fi
if [ -f "$log" ]; then cat "$log"; fi
if [ ! -s "$status" ]; then
  if [ -f "$log" ]; then what="did not come to its end"; else what="never ran"; fi
  echo "show_job.sh: the job $1 $what; what the guest said:" >&2
  cat "$2/guest.log" >&2
  exit 1
fi
read -r code <"$status"
# A job's own 77 is a failure like any other: only a missing device lets a test be skipped.
if [ "$code" -eq 77 ]; then code=1; fi
exit "$code"
