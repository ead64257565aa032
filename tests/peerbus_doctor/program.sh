#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# program.sh PROGRAM CASE: runs peerbus_doctor as its users do, and checks what it prints and returns.
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"
program=$1

# expect STATUS EXPECTED_STATUS FILE REGEX...
expect() {
  [ "$1" -eq "$2" ] || fail "status $1, expected $2"
  for regex in "${@:4}"; do grep -Eq -e "$regex" "$folder/$3" || fail "no '$regex' in $3"; done
}

# start RANK SIZE ARGUMENT...: a rank that a launcher has started; its output is in the file RANK.
start() {
  RANK=$1 WORLD_SIZE=$2 MASTER_PORT=$port "$program" "${@:3}" >"$folder/$1" 2>&1 &
  started+=($!)
}

# Abstract sockets have names, so groups that run at the same time need ports of their own.
port=$((20000 + $$ % 40000))

case $2 in
  ranks)
    for ranks in 1 2 4 5; do
      "$program" --ranks "$ranks" --rounds 20 --put-bytes 4096 >"$folder/out"
      expect $? 0 out 'launcher +none' "group: $ranks ranks over unified_bus" '^healthy'
      [ "$ranks" -eq 1 ] || expect 0 0 out "$((ranks * (ranks - 1))) pairs: every put arrived"
    done
    PEERBUS_LOG=info "$program" --ranks 2 --rounds 5 --put-bytes 64 >"$folder/out" 2>&1
    expect $? 0 out 'peerbus\[1\] info: transport: unified_bus, as --transport says' 'peerbus\[0\] info: reach: ' \
      'peerbus\[0\] info: huge pages: ' 'peerbus\[1\] info: protocol: counts_first, as for 1024 rows of 7172 bytes to 2' \
      'peerbus\[0\] info: stores: past the caches for batches of [0-9]+ bytes' 'peerbus\[0\] info: relay: one level, as asked'
    "$program" --ranks 2 --rounds 5 --put-bytes 64 >"$folder/out" 2>&1
    expect $? 0 out '^healthy'
    if grep -q ' info: ' "$folder/out"; then fail "lines of a log that nobody wanted"; fi
    PEERBUS_LOG=loud "$program" --ranks 2 >"$folder/out" 2>&1
    expect $? 2 out "PEERBUS_LOG is 'loud', expected info or debug"
    "$program" --ranks 17 --transport loopback --rounds 2 --put-bytes 8 >"$folder/out"
    expect $? 0 out '272 pairs: every put arrived' 'worst pairs: [0-9]+ to [0-9]+'
    ;;
  launched)
    for rank in 1 2 0; do start "$rank" 3 --rounds 20 --put-bytes 4096; done
    for process in "${started[@]}"; do wait "$process" || fail "a rank failed"; done
    expect 0 0 0 'found by RANK' 'WORLD_SIZE=3' "MASTER_PORT=$port" 'group: 3 ranks' '6 pairs: every put'
    [ ! -s "$folder/1" ] || fail "rank 1 has output"
    ;;
  over_tcp) # As ranks over verbs meet, whether or not there is a device.
    export PEERBUS_SECRET=not-for-anybody-to-see
    "$program" --ranks 1 >"$folder/out"
    if grep -q 'parts: .*fabric' "$folder/out"; then
      for transport in fabric planes; do
        "$program" --ranks 2 --transport "$transport" --rounds 20 --put-bytes 4096 >"$folder/$transport"
        expect $? 0 "$transport" "group: 2 ranks over $transport" '2 pairs: every put'
      done
    fi
    if ! grep -q 'parts: tcp, verbs' "$folder/out"; then exit 0; fi
    for rank in 1 0; do start "$rank" 2 --transport verbs --rounds 20; done
    wait "${started[@]}"
    expect 0 0 0 'PEERBUS_SECRET=.not shown, 22 bytes' 'group: 2 ranks over verbs' 'healthy: '
    if grep -q "$PEERBUS_SECRET" "$folder"/*; then fail "the secret is shown"; fi
    ;;
  half_launched)
    RANK=0 "$program" >"$folder/out"
    expect $? 1 out 'problem +launcher: WORLD_SIZE is not set' 'mend: set RANK' '^not healthy: 1 problem'
    WORLD_SIZE=2 RANK=0 MASTER_PORT=$port "$program" --timeout 1 --json "$folder/json" >"$folder/out"
    expect $? 1 out 'problem +group: .*rank 1.*timed out' 'mend: .*MASTER_PORT' '^not healthy: 1 problem'
    expect 0 0 json '"met": false' '"worst": "problem"'
    ;;
  killed)
    "$program" --ranks 4 --rounds 1000000 >"$folder/out" 2>"$folder/errors" &
    started+=($!)
    wait_for_tries out
    kill -KILL "$(sed -n 's/^ *rank 2: .*process \([0-9]*\),.*/\1/p' "$folder/out")"
    wait "${started[0]}"
    expect $? 1 out 'problem .*rank 2 died' '^not healthy'
    ;;
  stopped)
    for rank in 0 1; do start "$rank" 2 --rounds 20000000 --timeout 5; done
    wait_for_tries 0
    kill -STOP "${started[1]}"
    wait "${started[0]}"
    # A rank that lives would have said by itself that the rounds take too long.
    expect $? 1 0 'problem .*rank 1 to 0: wait for the report of rank 1 .timed out' '^not healthy'
    ;;
  arguments)
    while IFS='|' read -r arguments regex; do
      # shellcheck disable=SC2086
      "$program" $arguments >"$folder/out" 2>&1
      expect $? 2 out "$regex"
    done <<'ROWS'
--ranks 0|--ranks: '0' given, expected a whole number from 1 to 1024
--ranks 1025|--ranks: '1025' given
--timeout 0|--timeout: '0' given, expected a whole number from 1 to 3600
--timeout 1s|--timeout: '1s' given
--rounds none|--rounds: 'none' given
--put-bytes 12|--put-bytes: 12 given, expected a multiple of 8
--transport tcp|--transport: 'tcp' given, expected unified_bus, loopback, verbs, fabric or planes
--json|--json
--jsn x|--jsn
ROWS
    RANK=0 WORLD_SIZE=1 "$program" --ranks 2 >"$folder/out" 2>&1
    expect $? 2 out '--ranks: given, but a launcher'
    RANK=0 WORLD_SIZE=1 "$program" --transport loopback >"$folder/out" 2>&1
    expect $? 2 out "--transport: 'loopback' given"
    "$program" --ranks 1 --json "$folder/none/x" >"$folder/out" 2>&1
    expect $? 2 out "--json: cannot write '.*/none/x'"
    "$program" --help >"$folder/out"
    expect $? 0 out '--transport'
    ;;
  *) fail "no case '$2'" ;;
esac
