#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What scripts that compare programs in turns share; sourced. The caller sets `programs`, the folder
# of ours, and, for mpi_ep, `settings`, what to tell mpirun by name. This makes `results`, a folder
# that is gone in the end, and in it `lines`, the table of compare_peers.

script=$(basename "$0")
results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
: >"$results/lines"

need() { # need <program> <what to do if it is not there>
  if [ -x "$programs/$1" ]; then return 0; fi
  echo "$script: $programs/$1 is missing; $2" >&2
  return 1
}
run_quietly() { # run_quietly <seconds> <command>...
  timeout --kill-after=5 "$@" </dev/null >"$results/output" 2>&1
}
complain() {
  echo "$script: $1; the end of its output:" >&2
  tail -n 3 "$results/output" >&2
}
line() { # line <title> <files> <ours> <theirs> <note>
  local IFS=$'\t'
  printf '%s\n' "$*" >>"$results/lines"
}

# In every second round theirs comes first.
in_turns() { # in_turns <round> <ours> <theirs>
  if [ $(($1 % 2)) -eq 0 ]; then
    "$2" "$1"
    "$3" "$1"
  else
    "$3" "$1"
    "$2" "$1"
  fi
}

time_left() { # time_left <rounds done> <rounds> <seconds that they took>
  if [ "$1" -eq 0 ]; then return 0; fi
  local left=$((($2 - $1) * $3 / $1))
  if [ "$left" -lt 60 ]; then echo ", less than a minute left"; else echo ", about $((left / 60)) min left"; fi
}

print_table() { # print_table <json or nothing>
  [ -s "$results/lines" ] || return 0
  echo "ratio: theirs / ours, median of the rounds; spread: least and most of the rounds"
  "$programs/compare_peers" table "$results" ${1:+--json "$1"}
}

# Open MPI asks root for consent.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

run_mpi_ep() { # run_mpi_ep <seconds> <setting> <ranks> <json> <argument>...
  local place="--bind-to core"
  if [ "$3" -gt "$(nproc)" ]; then place="--oversubscribe --bind-to none"; fi # It then yields.
  if [[ -v settings[default] ]]; then place=""; fi
  # shellcheck disable=SC2086 # Settings are several words.
  run_quietly "$1" mpirun -n "$3" $place ${settings[$2]} "$programs/mpi_ep" "${@:5}" --json "$4"
}
# A short trial of each setting; `best` is then the name of the fastest.
choose_setting() { # choose_setting <ranks> <argument>...
  local trials=() setting
  for setting in "${!settings[@]}"; do
    run_mpi_ep 60 "$setting" "$1" "$results/$setting.trial" "${@:2}" || rm -f "$results/$setting.trial"
    trials+=("$results/$setting.trial")
  done
  if ! best=$("$programs/compare_peers" best "${trials[@]}"); then
    complain "mpi_ep failed with every setting"
    return 1
  fi
  rm -f "$results"/*.trial
  best=$(basename "$best" .trial)
}
