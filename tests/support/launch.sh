#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# launch.sh RANKS REGEX PROGRAM ARGUMENT...: runs a program as a launcher's ranks on this host. All must
# succeed, and their output must match the expression.
set -u
export WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((12000 + $$ % 20000))
export PEERBUS_SECRET="only between the ranks of $$"
regex=$2
shift 2
output=$(mktemp)
started=()
finish() {
  for process in "${started[@]}"; do kill -KILL "$process" 2>/dev/null; done
  rm -f "$output"
}
trap finish EXIT
for ((rank = 0; rank < WORLD_SIZE; ++rank)); do
  RANK=$rank "$@" >>"$output" 2>&1 &
  started+=($!)
done
status=0
for process in "${started[@]}"; do wait "$process" || status=1; done
started=()
cat "$output"
if ! grep -Eq -e "$regex" "$output"; then
  echo "launch.sh: the output does not match '$regex'"
  status=1
fi
exit $status
