#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# program.sh PROGRAM JOB CASE: runs peerbus_inspect as its users do, and checks what it prints and returns. JOB is
# peerbus_doctor, whose ranks send each other signals for long.
# shellcheck source=tests/support/program.sh
source "$(dirname "${BASH_SOURCE[0]}")/../support/program.sh"
program=$1
job=$2

# expect EXPECTED_STATUS FIRST_LINE_REGEX ARGUMENT...: runs the program
expect() {
  timeout 20 "$program" "${@:3}" >"$folder/out" 2>&1
  local status=$?
  [ "$status" -eq "$1" ] || fail "${*:3}: status $status, expected $1"
  head -1 "$folder/out" | grep -Eq -e "$2" || fail "${*:3}: no '$2' in the first line"
}
has() {
  for regex in "$@"; do grep -Eq -e "$regex" "$folder/out" || fail "no '$regex'"; done
}

# start ARGUMENT...: starts the job, and waits until all ranks have met.
start() {
  "$job" --ranks 4 --rounds 1000000000 "$@" >"$folder/job" 2>&1 &
  parent=$!
  started=("$parent")
  wait_for_tries job
}
process_of() { sed -n "s/^ *rank $1: .*process \([0-9]*\),.*/\1/p" "$folder/job"; }

case $3 in
  stopped)
    start
    stopped=$(process_of 0)
    kill -STOP "$stopped"
    for process in "$parent" "$stopped" "$(process_of 2)"; do
      expect 1 "^rank 0 \(pid $stopped\) is stopped; .* waits? for it, the longest for " "$process"
      has "^kill -CONT $stopped" '^group of 4 ranks$' "^ +0 +$stopped  stopped  stopped " '^ +3 .* running '
    done
    expect 1 '^{$' --json "$parent"
    has '"answer": "rank 0 \(pid' '"finding": "stopped"' "\"pid\": $stopped," '"operation": "signal"' '"waits_for": \['
    # A process that has ended does not keep the others from being seen.
    sleep 0 &
    gone=$!
    wait "$gone"
    expect 1 "^peerbus_inspect: process $gone is gone" "$gone" "$parent"
    has "^rank 0 \(pid $stopped\) is stopped; "
    expect 1 "^peerbus_inspect: process $gone is gone" --json "$gone" "$parent"
    has '"answer": "rank 0 \(pid' "^    $gone$"
    # The job goes on, and ranks whose turn it is not wait for those that are at work.
    kill -CONT "$stopped"
    expect 0 'no rank has waited for long' --patience 86400 "$parent"
    ;;
  killed)
    start
    "$program" --watch 0.05 "$parent" >"$folder/watch" 2>&1 &
    watcher=$!
    for ((i = 0; i < 600; ++i)); do
      if [ -s "$folder/watch" ]; then break; fi
      sleep 0.05
    done
    kill -KILL "$(process_of 2)"
    wait "$parent" 2>/dev/null
    started=()
    wait "$watcher" # The job's end ends it.
    [ $? -le 1 ] || fail "the watch failed"
    [ "$(grep -c '^group of 4 ranks' "$folder/watch")" -ge 1 ] || fail "nothing was watched"
    ;;
  threads)
    start --transport loopback
    kill -STOP "$parent"
    expect 1 "^ranks 0-3 \(pid $parent\) are stopped; no rank waits" "$parent"
    ;;
  hosts) # Ranks 0 and 1 are on one host, rank 2 is on another.
    "$job" --ranks 1 >"$folder/out"
    grep -q 'parts: .*fabric' "$folder/out" || exit 0 # Without it, ranks of several hosts cannot be tried here.
    export PEERBUS_SECRET=not-for-anybody-to-see WORLD_SIZE=3 MASTER_PORT=$((20000 + $$ % 40000))
    for rank in 0 1 2; do
      RANK=$rank PEERBUS_HOST=host-$((rank / 2)) "$job" --transport fabric --rounds 1000000000 \
        >"$folder/job.$rank" 2>&1 &
      started+=("$!")
    done
    wait_for_tries job.0
    expect 0 'no rank has waited for long' --patience 86400 "${started[0]}"
    has '^  not seen: rank 1; of a group that met over TCP, name all processes of this host$' \
      '^  not seen: rank 2; ask on host host-1$'
    expect 0 '^{$' --json --patience 86400 "${started[@]:0:2}"
    tr -d ' \n' <"$folder/out" >"$folder/flat"
    grep -qF '"not_seen":[2],"elsewhere":[{"host":"host-1","ranks":[2]}]' "$folder/flat" || fail "no host in the JSON"
    ;;
  refused)
    start
    gone=$parent
    kill -KILL "$parent"
    wait "$parent" 2>/dev/null
    started=()
    expect 2 "^peerbus_inspect: .*process $gone given, expected one that runs on this host" "$gone"
    expect 2 "^peerbus_inspect: .*process $$ is in no group of peerbus, expected a rank" $$
    expect 2 "^peerbus_inspect: PID is required"
    expect 2 "^peerbus_inspect: PID: 'x' given, expected a whole number" x
    expect 2 "^peerbus_inspect: --watch: '0' given" --watch 0 1
    expect 0 "^Prints what the ranks" --help
    ;;
  *) fail "no case '$3'" ;;
esac
