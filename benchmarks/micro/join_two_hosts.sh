#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The time to join between two hosts, each of which has half of the processes:
#   bash benchmarks/micro/join_two_hosts.sh .../micro_bench [OPTION of Google Benchmark]...
# The hosts are namespaces (benchmarks/support/two_hosts.sh).

set -u -o pipefail
if [ $# -lt 1 ] || ! [ -x "$1" ]; then
  echo "usage: join_two_hosts.sh MICRO_BENCH [OPTION]...: expected the program micro_bench, found '${1:-}'" >&2
  exit 2
fi
script=$(realpath "${BASH_SOURCE[0]}")
source "${script%/*}/../support/two_hosts.sh" || exit 1
become_two_hosts "$script" "$@"

program=$1
shift
PEERBUS_SECOND_HOST=/proc/$second/ns/net "$program" --benchmark_filter='^join/two_hosts/' "$@"
