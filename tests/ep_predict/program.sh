#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# program.sh PROGRAM PLATFORM CASE: runs ep_predict as its users do, and checks what it writes.
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"
program=$1
platform=$2

# predict FILE ARGUMENT...: predicts a small load
predict() {
  "$program" "$platform" --ranks 4 --tokens 4 --rounds 2 "${@:2}" >"$folder/$1" || fail "${*:2}: status $?"
}
# spread FILE: prints the whole microseconds from the minimum to the maximum of the dispatches in a CSV file
spread() { awk -F, '$1 == "dispatch" { printf "%d\n", $12 - $11 }' "$folder/$1"; }

case $3 in
  skew)
    predict together --csv
    [ "$(spread together)" -lt 5 ] || fail "without skew, times are $(spread together) us apart"
    predict late --csv --skew-us 1000
    [ "$(spread late)" -gt 200 ] || fail "with a skew of 1000 us, times are $(spread late) us apart"
    predict again --csv --skew-us 1000
    cmp "$folder/late" "$folder/again" || fail "equal seeds give different times"
    predict other --csv --skew-us 1000 --seed 2
    ! cmp -s "$folder/late" "$folder/other" || fail "different seeds give equal times"
    ;;
  trace)
    predict out --trace "$folder/trace.json"
    for rank in 0 1 2 3; do
      grep -q "\"pid\": *$rank\b" "$folder/trace.json" || fail "rank $rank is not in the trace"
    done
    grep -q dispatch "$folder/trace.json" || fail "no dispatch in the trace"
    ;;
  *) fail "no case '$3'" ;;
esac
