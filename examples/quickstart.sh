#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# From a fresh clone to real text on its way through eight processes:
#   bash examples/quickstart.sh [TEXT_FILE]     (default: the project's README)

set -eu -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
text=README.md
if [ $# -gt 0 ]; then text=$(cd "$OLDPWD" && realpath -- "$1"); fi

source tests/install_packages.sh
peerbus_need_packages g++ cmake ninja-build

mkdir -p build/logs
log=build/logs/quickstart.log
echo "peerbus: building moe_text in build/quickstart"
# A build folder of its own: without tests and benchmarks it needs no more than a compiler.
if ! {
  cmake --preset release -B build/quickstart -DPEERBUS_BUILD_TESTS=OFF -DPEERBUS_BUILD_BENCHMARKS=OFF \
    -DPEERBUS_PROGRAMS_COMPILED=OFF && # One program alone needs only a part of it.
    cmake --build build/quickstart --target moe_text
} >"$log" 2>&1 </dev/null; then
  tail -n 60 "$log"
  echo "peerbus: moe_text does not build; all of the output is in $log" >&2
  exit 1
fi
exec build/quickstart/examples/moe_text "$text"
