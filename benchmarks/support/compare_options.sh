#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The command line of a script that compares programs in turns; sourced before turns.sh. The caller
# sets `started_in`, the folder that it was started in, and `help_lines`, the lines of its beginning
# that explain it, and defines `is_item`, whether a word says what to compare. It may set
# `variable_of`, from an option of its own to the variable for its value, and `takes_shared`.

self=$(cd "$started_in" && realpath -- "$0")
declare -A variable_of+=([--rounds]=rounds [--json]=json [--build]=build)
rounds=5
json=""
build=build/release
items=()  # what to compare
shared=() # what follows a `--`

usage() {
  sed -n "s/^# \{0,1\}//; ${help_lines}p" "$self"
  exit "$1"
}
refuse() { # refuse <words>...
  echo "compare.sh: $*" >&2
  exit 2
}
require_numbers() { # require_numbers <option>...: each given as a number from 1 on
  local option
  for option; do
    local -n given=${variable_of[$option]}
    [[ $given =~ ^[1-9][0-9]*$ ]] || refuse "$option: '$given' given, expected a number from 1 on"
  done
}
# Before the run, so that minutes of measuring are not lost to a wrong path.
require_writable() { # require_writable <option> <path>
  local is_there=no
  if [ -e "$2" ]; then is_there=yes; fi
  { : >>"$2"; } 2>/dev/null ||
    refuse "$1: '$2' cannot be written, expected the path of a file to create or replace"
  if [ "$is_there" = no ]; then rm -f -- "$2"; fi
}
read_options() { # read_options <argument>...
  while [ $# -gt 0 ]; do
    if [[ $1 == --help || $1 == -h ]]; then
      usage 0
    elif [[ -v variable_of[$1] ]]; then
      [ $# -ge 2 ] || refuse "$1 needs a value"
      printf -v "${variable_of[$1]}" %s "$2"
      shift 2
    elif [[ $1 == -- && -v takes_shared ]]; then
      shared=("${@:2}")
      break
    elif is_item "$1"; then
      items+=("$1")
      shift
    else
      echo "compare.sh: '$1' given, expected an option or what to compare:" >&2
      usage 2 >&2
    fi
  done
  require_numbers --rounds
  # Both paths are of where the caller is.
  if [[ -n $json && $json != /* ]]; then json=$started_in/$json; fi
  if [ -n "$json" ]; then require_writable --json "$json"; fi
  if [[ $build != /* && ! -d $build ]]; then build=$started_in/$build; fi
}
wants() { # wants <item, or what it has before its first colon>
  printf '%s\n' "${items[@]}" | grep -qE "^$1(:|\$)"
}
