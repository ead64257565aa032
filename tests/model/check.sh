#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# check.sh NAME FOLDER [--expect-error=KIND[:TEXT]] [-DMACRO...]: has spin search all states of NAME.pml, with
# these macros. FOLDER is made if need be and takes all files. With -DLIVENESS it checks the formula of the model,
# under weak fairness, and no assertion; else assertions, and that in no state somebody waits and nothing moves.
#
# The status is 0 if there is no error. With --expect-error it is 0 if there is an error of this kind: assertion,
# end_state or cycle, whose text, an assertion's expression, contains TEXT. A search that ends early for another
# reason, such as its depth or memory, is a failure in either case.
#
# PEERBUS_MODEL_MIB is the memory that a search may take, 1024 MiB by default; states are stored in less
# memory and more time where it is set. PEERBUS_MODEL_SECONDS is the time, 300 s by default.
set -u -o pipefail

fail() {
  echo "check.sh: $*" >&2
  exit 1
}

[ $# -ge 2 ] || fail "expected NAME FOLDER [--expect-error=KIND[:TEXT]] [-DMACRO...], given: $*"
model=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$1.pml || exit 1
name=$1
folder=$2
shift 2
[ -f "$model" ] || fail "there is no model $model"

expected=""
macros=()
for argument in "$@"; do
  case $argument in
    --expect-error=*) expected=${argument#--expect-error=} ;;
    -D?*) macros+=("$argument") ;;
    *) fail "given '$argument', expected --expect-error=KIND[:TEXT] or -DMACRO" ;;
  esac
done
kind=${expected%%:*}
text=""
case $expected in *:*) text=${expected#*:} ;; esac
case $kind in
  "") said="" ;;
  assertion) said="assertion violated" ;;
  end_state) said="invalid end state" ;;
  cycle) said="acceptance cycle" ;;
  *) fail "given the kind '$kind', expected assertion, end_state or cycle" ;;
esac

compiler=${CC:-cc}
for tool in spin "$compiler" timeout; do
  command -v "$tool" >/dev/null || fail "$tool is not found (Debian: spin gcc coreutils)"
done
mkdir -p "$folder" && cd "$folder" || exit 1
rm -f pan pan.* "$name.pml.trail" spin.log pan.log

spin -a -P"$compiler -E -x c" "${macros[@]}" "$model" >spin.log 2>&1 || { cat spin.log; fail "spin does not accept $name.pml"; }
if grep -q 'Error:' spin.log || [ ! -s pan.c ]; then
  cat spin.log
  fail "spin does not accept $name.pml"
fi

flags=(-O2 -w "-DMEMLIM=${PEERBUS_MODEL_MIB:-1024}")
if [ -n "$kind" ]; then flags[0]=-O0; fi # The search ends soon, so compiling would take longest.
if [ -n "${PEERBUS_MODEL_MIB:-}" ]; then flags+=(-DCOLLAPSE); fi
options=(-m1000000 -w22)
if [[ " ${macros[*]} " =~ ' -DLIVENESS' ]]; then
  flags+=(-DNFAIR=4)
  options+=(-a -f -A)
else
  flags+=(-DSAFETY -DNOFAIR)
fi
"$compiler" "${flags[@]}" pan.c -o pan || fail "pan.c does not compile"
timeout "${PEERBUS_MODEL_SECONDS:-300}" ./pan "${options[@]}" >pan.log 2>&1
status=$?

title=$name.pml
if [ ${#macros[@]} -ne 0 ]; then title+=" ${macros[*]}"; fi
show() {
  cat pan.log
  if [ -f "$name.pml.trail" ]; then
    echo "The steps to the error: cd $PWD && spin -t -p ${macros[*]} $model"
  fi
}

# Found states, and the first error, or nothing. pan says "errors: N" once it has ended by itself.
states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*$/\1/p' pan.log | head -n 1)
seconds=$(sed -n 's/^pan: elapsed time \([0-9.e+-]*\) seconds$/\1/p' pan.log)
errors=$(sed -n 's/^State-vector.*errors: \([0-9]*\)$/\1/p' pan.log)
first=$(sed -n 's/^pan:[0-9]*: *//p' pan.log | head -n 1)
if [ "$status" -ne 0 ] || [ -z "$errors" ]; then
  show
  fail "the search of $name.pml did not end, with status $status"
fi
if grep -qiE 'max search depth too small|memlim bound|out of memory|too small|too many' pan.log; then
  show
  fail "the search of $name.pml was cut short"
fi

if [ -z "$kind" ]; then
  if [ "$errors" -ne 0 ] || grep -q 'Search not completed' pan.log; then
    show
    fail "$title has an error: $first"
  fi
  echo "$title: no error in $states states, ${seconds:-?} s"
else
  case $first in
    "$said"*"$text"*) ;;
    *)
      show
      fail "$title: expected an error '$said' with '$text', found '${first:-none}'"
      ;;
  esac
  echo "$title: as expected, $first, after $states states"
fi
