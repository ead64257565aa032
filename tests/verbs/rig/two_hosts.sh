#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a program on two guests, 10.9.0.1 and 10.9.0.2, that are on one Ethernet wire, each with a
# soft-RoCE device on it:
#   two_hosts.sh [--timeout S] [--ranks-per-host N] --out DIR -- COMMAND [ARGUMENT...]
# COMMAND runs once per rank, with the variables that torchrun sets, MASTER_ADDR=10.9.0.1 and a secret
# in PEERBUS_SECRET. Each rank's output is in DIR/rank_R.log and is shown at the end. Exits with 0 if
# every rank did; where there can be no guest, with 77, or with 1 if the environment has CI=true.
#
# The wire is a socket in Linux's abstract namespace: no port to be taken, no file to be left behind.

set -u -o pipefail
# shellcheck source-path=SCRIPTDIR source=prepare.sh
source "$(dirname "${BASH_SOURCE[0]}")/prepare.sh" || exit 125

stop() {
  echo "two_hosts.sh: $*" >&2
  exit 125
}

seconds=600
per_host=2
out=""
while [ $# -gt 0 ]; do
  case $1 in
    --timeout) seconds=$2 ;;
    --ranks-per-host) per_host=$2 ;;
    --out) out=$(realpath -e -- "$2") || stop "--out $2 is not there" ;;
    --) shift; break ;;
    *) stop "what is '$1'?" ;;
  esac
  shift 2 || stop "$1 lacks its value"
done
[ -n "$out" ] || stop "--out is missing"
[ $# -gt 0 ] || stop "no command given"

peerbus_prepare_or_skip "VERBS BETWEEN HOSTS WERE"
rm -f "$out"/rank_*.log "$out"/host_*
wire=$$-$RANDOM$RANDOM
PEERBUS_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export PEERBUS_SECRET

guest() { # HOST WIRE COMMAND...
  exec "${peerbus_dies_with_this[@]}" "$peerbus_rig/guest.sh" --timeout "$seconds" --out "$out" \
    --wire "$2" --address "10.9.0.$(($1 + 1))/24" -- "$peerbus_rig/host_ranks.sh" "$1" "$per_host" "$out" "${@:3}" \
    >"$out/host_$1.log" 2>&1
}

guest 0 "listen=$wire" "$@" &
first=$!
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
until grep -q "@peerbus-$wire\$" /proc/net/unix; do
  if ! kill -0 $first 2>/dev/null; then
    cat "$out/host_0.log" >&2
    stop "the first guest ended before it had its end of the wire"
  fi
  sleep 0.05
done
guest 1 "connect=$wire" "$@" &
second=$!

# A guest that broke leaves its ranks' peers waiting for nothing.
wait -n -p ended $first $second
if [ $? -ge 124 ]; then kill "$((first + second - ended))"; fi
wait $first
status_0=$?
wait $second
status_1=$?
trap - EXIT

for ((rank = 0; rank < 2 * per_host; ++rank)); do
  echo "--- rank $rank, host $((rank / per_host))"
  cat "$out/rank_$rank.log"
done
for host in 0 1; do
  echo "--- host $host"
  cat "$out/host_$host.log"
done
if [ $status_0 -ne 0 ]; then exit $status_0; fi
exit $status_1
