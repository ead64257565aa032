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

# within PLATFORM LIBRARY DISPATCH COMBINE [RANKS]: requires that the published rows of a library, of at least so many
# ranks, are met within so many percent, totals as combines
within() {
  "$program" "$platforms/$1.json" --residuals --library "$2" >"$folder/$1" || fail "$1: status $?"
  awk -v dispatch="$3" -v combine="$4" -v ranks="${5:-1}" '
    $8 == "%" && $1 >= ranks {
      rows++
      limit = $3 == "dispatch" ? dispatch : combine
      if ($7 > limit || $7 < -limit) { print; wrong = 1 }
    }
    END { exit wrong || !rows }' "$folder/$1" || fail "rows of $2 are off: $(cat "$folder/$1")"
}
platforms=${platform%/*}

case $3 in
  residuals)
    within h100_nvl pplx-garden 15 15
    within b200_efa "DeepEP V2, AWS" 15 15
    ! "$program" "$platform" --residuals --library X 2>"$folder/why" || fail "an unknown library is taken"
    grep -qF "has no times of 'X'" "$folder/why" || fail "$(cat "$folder/why")"
    for file in "$platforms"/*.json; do
      "$program" "$file" --ranks 16 --tokens 1 --rounds 1 >"$folder/out" || fail "$file: status $?"
      grep -qE "^ +16 +1 dispatch" "$folder/out" || fail "$file: $(cat "$folder/out")"
    done
    ;;
  residuals_of_many_ranks)
    within h800_cx7 "DeepEP V1" 5 10 16
    within cloudmatrix384 CANN 10 10
    within h100_nvl "DeepEP V1, pplx-garden's figures" 5 10 16
    within h100_nvl "NCCL EP" 10 10
    ;;
  in_flight)
    # Without a start-up, one of two batches travels while experts compute for the other.
    sed 's/"dispatch_ns": [0-9]*, "combine_ns": [0-9]*/"dispatch_ns": 0, "combine_ns": 0/' "$platform" >"$folder/fast.json"
    "$program" "$folder/fast.json" --ranks 16 --tokens 8 --rounds 1 --layout slots --advice >"$folder/out" ||
      fail "status $?"
    hidden=$(sed -nE 's/.*in flight: yes, .* ([0-9]+) % of the exchange is hidden$/\1/p' "$folder/out")
    [ "${hidden:-0}" -gt 30 ] && [ "$hidden" -lt 90 ] || fail "$(cat "$folder/out")"
    ! "$program" "$platform" --experts-us 5 2>"$folder/why" || fail "--experts-us is taken without --advice"
    grep -qF -- "--experts-us: given without --advice" "$folder/why" || fail "$(cat "$folder/why")"
    ;;
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
  near_levels)
    for value in 9 -1 1.5 '"1"'; do
      sed "s/\"costs\"/\"near_levels\": $value, \"costs\"/" "$platform" >"$folder/bad.json"
      ! "$program" "$folder/bad.json" 2>"$folder/why" || fail "near_levels $value is taken"
      grep -qF "near_levels is $value, expected a whole number, 0 to" "$folder/why" || fail "$(cat "$folder/why")"
    done
    predict far --csv
    sed "s/\"costs\"/\"near_levels\": 1, \"costs\"/" "$platform" >"$folder/near.json"
    platform="$folder/near.json"
    predict near --csv
    ! cmp -s "$folder/far" "$folder/near" || fail "near_levels changes nothing"
    ! "$program" "$platform" --model aggregated 2>"$folder/why" || fail "the aggregated model takes near_levels"
    grep -q "near_levels is 1, expected 0" "$folder/why" || fail "$(cat "$folder/why")"
    ;;
  referee)
    # What shares nothing agrees, or the status says so; behind an incast SimGrid's messages wait, and those of ports do not.
    "$program" "$platform" --ranks 24 --tokens 8 --rounds 1 --engine both --csv --streams 1 >"$folder/both" ||
      fail "status $?"
    # off FLOWS: prints by how many percent SimGrid's median is longer than that of the ports
    off() { awk -F, -v flows="$1" '$1 == flows { printf "%d\n", ($6 / $5 - 1) * 100 }' "$folder/both"; }
    [ "$(awk -F, '$4 == "nothing"' "$folder/both" | wc -l)" = 2 ] || fail "$(cat "$folder/both")"
    [ "$(off shift)" = 0 ] || fail "flows that share nothing are off by $(off shift) %"
    [ "$(off "behind incast")" -gt 100 ] || fail "behind an incast: $(off "behind incast") %"
    "$program" "$platform" --ranks 24 --tokens 8 --rounds 1 --engine both --csv --streams 0 >"$folder/both" ||
      fail "status $?"
    [ "$(off "behind incast")" -lt 0 ] || fail "behind an incast, with all streams: $(off "behind incast") %"
    # A card of all ranks: a shift shares it.
    sed 's/"card", "ranks": 1/"card", "ranks": 8/' "$platform" >"$folder/shared.json"
    "$program" "$folder/shared.json" --ranks 24 --tokens 8 --rounds 1 --engine both --csv --streams 0 >"$folder/both" ||
      fail "status $?"
    [ "$(awk -F, '$4 == "nothing"' "$folder/both" | wc -l)" = 0 ] || fail "$(cat "$folder/both")"
    [ "$(off shift)" -gt 30 ] || fail "a shift through shared cards: $(off shift) %"
    # Numbers of ranks one after the other, late ranks, and equal times for equal seeds.
    for file in first again; do
      "$program" "$platform" --ranks 1,8,3 --tokens 4 --rounds 1 --engine simgrid --skew-us 50 --csv \
        >"$folder/$file" || fail "status $?"
    done
    cmp "$folder/first" "$folder/again" || fail "equal seeds give different times"
    [ "$(wc -l <"$folder/first")" = 7 ] || fail "$(cat "$folder/first")"
    for wrong in "--engine ns3:expected ports, simgrid or both" \
      "--engine simgrid --bounds:--bounds: given with --engine simgrid" \
      "--engine both --residuals:--residuals: given with --engine both" \
      "--engine simgrid --check:--engine: given with --check" "--streams 2:--streams: given with --engine ports"; do
      # shellcheck disable=SC2086
      ! "$program" "$platform" ${wrong%%:*} 2>"$folder/why" || fail "${wrong%%:*} is taken"
      grep -qF -- "${wrong#*:}" "$folder/why" || fail "$(cat "$folder/why")"
    done
    ;;
  no_referee)
    ! "$program" "$platform" --engine simgrid 2>"$folder/why" || fail "--engine simgrid is taken"
    grep -qF "built without SimGrid (Debian: libsimgrid-dev)" "$folder/why" || fail "$(cat "$folder/why")"
    ;;
  calibrate)
    # result TOKENS HIDDEN [FACTOR]: writes a result of ep_bench whose times grow linearly with the tokens, times FACTOR
    result() {
      python3 - "$1" "$2" "${3:-1}" >"$folder/$1_$2.json" <<'end'
import json, sys
tokens, hidden, factor = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
json.dump({"config": {"ranks": 2, "tokens": tokens, "hidden": hidden, "top_k": 8, "experts": 64, "codec": "int8",
                      "layout": "expert_slots", "transport": "ub", "outputs": "expert", "lanes": 1},
           "machine": {"cpu": "cpu"}, "limit": {"signal_one_way_ns": 100},
           "dispatch_us": {"p50": factor * (10 + 2 * tokens)}, "combine_us": {"p50": factor * (5 + 2.5 * tokens)},
           "bytes": {"dispatch": 8 * tokens * (hidden + 12), "combine": 16 * tokens * hidden}}, sys.stdout)
end
    }
    calibrate() { python3 "$(dirname "${BASH_SOURCE[0]}")/../../examples/ep_predict/calibrate.py" "$@"; }
    result 1 1024 && result 8 1024 && result 64 1024 && result 8 512
    calibrate "$folder"/*_1024.json >"$folder/own.json" || fail "no platform"
    "$program" "$folder/own.json" --residuals >"$folder/residuals" || fail "status $?"
    [ "$(awk '/ predicted$/ && $7 > -2 && $7 < 2' "$folder/residuals" | wc -l)" = 2 ] ||
      fail "$(cat "$folder/residuals")"
    # Of three that fit, the one in the middle takes a fifth longer: each is off by a tenth of the mean.
    result 1 2048 && result 2 2048 && result 4 2048 1.2 && result 8 2048 && result 16 2048
    calibrate "$folder"/*_2048.json >"$folder/own.json" || fail "no platform"
    "$program" "$folder/own.json" --residuals >"$folder/residuals" || fail "status $?"
    [ "$(awk '/dispatch .*_ns/ && ($7 > 8 && $7 < 10 || $7 < -8 && $7 > -10)' "$folder/residuals" | wc -l)" = 3 ] ||
      fail "$(cat "$folder/residuals")"
    ! calibrate "$folder"/*.json 2>"$folder/why" >"$folder/own.json" || fail "other rows are taken"
    grep -q "hidden is .*, expected .* as in" "$folder/why" || fail "$(cat "$folder/why")"
    ! calibrate "$folder/8_512.json" 2>"$folder/why" >"$folder/own.json" || fail "one result is enough"
    grep -q "at least 2 numbers of tokens" "$folder/why" || fail "$(cat "$folder/why")"
    ;;
  memory)
    # Counts of many experts are short in slots. If they were thought as long as rows, all rows would be carried.
    kib=$(python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$program" "$platform" --ranks 64 --tokens 16 \
      --experts 4096 --layout expert_slots --rounds 1) || fail "status $?"
    [ "$kib" -lt 400000 ] || fail "64 ranks take $kib KiB, expected less than 400000"
    ;;
  *) fail "no case '$3'" ;;
esac
