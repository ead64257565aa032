#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What including and using peerbus costs a compiler, beside another commit's cost, in turns:
#   benchmarks/compile_time.sh [--rounds N] [--compiler CXX] [COMMIT]     (default 5, g++, HEAD)
# Each figure is the CPU time (user and system) of one compiler process, the least of all rounds,
# which other load disturbs least. `compiled` is the program that links peerbus::compiled, whose own
# cost comes once per build. The table is Markdown.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=5
compiler=g++
commit=HEAD
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=${2:?--rounds takes a number}; shift 2 ;;
    --compiler) compiler=${2:?--compiler takes a program}; shift 2 ;;
    --help) sed -n '3,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) echo "compile_time.sh: what is '$1'? Expected --rounds N, --compiler CXX or a commit" >&2; exit 2 ;;
    *) commit=$1; shift ;;
  esac
done
[[ $rounds =~ ^[1-9][0-9]*$ ]] || { echo "compile_time.sh: --rounds takes a positive number, not '$rounds'" >&2; exit 2; }
command -v "$compiler" >/dev/null || { echo "compile_time.sh: there is no compiler '$compiler'" >&2; exit 2; }
name=$(git rev-parse --short --verify "$commit^{commit}") || exit 2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/before"
git archive "$name" include examples/00_dispatch_combine.cpp | tar -x -C "$work/before"
now=$PWD

declare -A least
# measure KEY TREE ARGUMENT...: keeps the least CPU time of compiling with the headers of TREE.
measure() {
  local key=$1 tree=$2 seconds
  shift 2
  seconds=$( { TIMEFORMAT='%U %S'; time "$compiler" -std=c++20 -I "$tree/include" "$@" >/dev/null; } 2>&1 |
    awk 'END { if (NF != 2) exit 1; print $1 + $2 }') ||
    { echo "compile_time.sh: $compiler $* fails with the headers of $tree" >&2; exit 1; }
  least[$key]=$(awk -v a="${least[$key]:-9999}" -v b="$seconds" 'BEGIN { print a < b ? a : b }')
}
# The standard headers that HEADER of TREE includes, directly or not, through headers of ours.
standard_headers() {
  "$compiler" -std=c++20 -M -I "$2/include" -include "$1" -x c++ /dev/null | tr ' \\' '\n\n' |
    grep -F "$2/include/" | sort -u | xargs cat | grep -oE '^#include <[^>]+>' |
    grep -v -e '<peerbus/' -e arm_neon | sort -u
}

headers=(peerbus/core.hpp peerbus/peerbus.hpp peerbus/compat/deep_ep.hpp)
program=examples/00_dispatch_combine.cpp
for header in "${headers[@]}"; do
  standard_headers "$header" "$now" >"$work/$(basename "$header").std.cpp"
done
for ((round = 0; round < rounds; ++round)); do
  for header in "${headers[@]}"; do
    echo "#include <$header>" >"$work/one.cpp"
    measure "$header before" "$work/before" -fsyntax-only "$work/one.cpp"
    measure "$header now" "$now" -fsyntax-only "$work/one.cpp"
    measure "$header compiled" "$now" -DPEERBUS_COMPILED -fsyntax-only "$work/one.cpp"
    measure "$header standard" "$now" -fsyntax-only "$work/$(basename "$header").std.cpp"
  done
  measure "program before" "$work/before" -O2 -c "$work/before/$program" -o "$work/program.o"
  measure "program now" "$now" -O2 -c "$program" -o "$work/program.o"
  measure "program compiled" "$now" -DPEERBUS_COMPILED -O2 -c "$program" -o "$work/program.o"
done
for source in cmake/compiled/*.cpp; do
  measure "library $source" "$now" -DPEERBUS_COMPILED -O2 -c "$source" -o "$work/library.o"
done

ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }
row() { # LABEL KEY STANDARD
  local before=${least[$2 before]} now_s=${least[$2 now]} compiled=${least[$2 compiled]}
  echo "| $1 | $3 | $before | $now_s | $(ratio "$now_s" "$before") | $compiled | $(ratio "$compiled" "$before") |"
}
echo "| CPU seconds, $($compiler --version | head -n 1) | its standard headers | $name | header-only | ratio | compiled | ratio |"
echo "| --- | --- | --- | --- | --- | --- | --- |"
for header in "${headers[@]}"; do row "parse <$header>" "$header" "${least[$header standard]}"; done
row "$program, -O2" program ""
total=0
for source in cmake/compiled/*.cpp; do total=$(awk -v a="$total" -v b="${least[library $source]}" 'BEGIN { print a + b }'); done
echo
echo "peerbus::compiled itself: $total CPU seconds, once per build."
