# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# Sourced by the tests of programs: a folder for their output, and the end of what they have started.
set -u
folder=$(mktemp -d)
started=() # processes to end with the test; ranks that they have started die with them
finish() {
  for process in "${started[@]}"; do kill -KILL "$process" 2>/dev/null; done
  rm -rf "$folder"
}
trap finish EXIT

fail() {
  printf '%s\n' "$*" "--- output:" >&2
  cat "$folder"/* >&2
  exit 1
}

# wait_for_tries FILE: waits until rank 0 of peerbus_doctor, whose output is in the file, knows of all windows
wait_for_tries() {
  for ((i = 0; i < 600; ++i)); do
    if grep -q '^trying' "$folder/$1"; then return; fi
    sleep 0.1
  done
  fail "the tries did not begin"
}
