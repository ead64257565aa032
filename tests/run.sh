#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks peerbus, on a fresh Debian machine as well:
#   bash tests/run.sh             the first gate: format, one build by g++ and its tests
#   bash tests/run.sh all         the first gate, then the deep stages: sanitizers, a guest with RDMA, ...
#   bash tests/run.sh NAME...     only these stages (their names as `--list` shows them)
#   PEERBUS_DEEPEP=<checkout> PEERBUS_PYTHON=<python with torch> bash tests/run.sh deepep
#                                 DeepEP's own tests, unchanged; `all` has the stage if PEERBUS_DEEPEP is set
# The last line counts ctest's tests and the stages, over all builds: `N passed, N failed`.

set -u -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
exec </dev/null
source tests/install_packages.sh || exit 1

# What a stage needs beyond its name is in its function stage_<name>, below.
first_gate=(packages format release test_release)
deep_stages=(deep_packages verbs asan test_asan tsan test_tsan flags search parse_time tidy aarch64 test_aarch64)
# What the stages took in seconds on 2 cores, from which a run that must end in time (PEERBUS_MINUTES) tells whether
# a deep stage still would on this machine. Only the ratios matter; others take no time.
declare -A usual_seconds=([format]=12 [release]=475 [test_release]=500 [verbs]=305 [asan]=460 [test_asan]=520
  [tsan]=225 [test_tsan]=265 [flags]=180 [search]=130 [parse_time]=60 [tidy]=360 [aarch64]=110 [test_aarch64]=35)

if [ -n "${PEERBUS_DEEPEP:-}" ]; then deep_stages+=(deepep); fi

# The seconds that each random search, and each soak by its share, may take: the one number to raise for a
# longer look.
export PEERBUS_SEARCH_SECONDS=${PEERBUS_SEARCH_SECONDS:-3}

# Other releases lay out code and warn differently. Before 21, clang-tidy checked the text of system headers
# too, only to hide what it found, and took twice as long; where 22 cannot be had, 19 does.
format_llvm=19
newest_llvm=22 # Debian 12 has it among its updates.
jobs=$(nproc)
logs=build/logs

# Compiler caches change nothing but the time. The second line lets ccache serve builds with
# precompiled headers.
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime CCACHE_PCH_EXTSUM=1
fi

build() { cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs"; }
# At most as many tests run at once as there are cores, and two of those that only wait beside them, by the numbers
# of cmake/peerbus_development.cmake: more would let the ranks of one starve another's.
#
# A machine that others use, too, halts a rank for seconds now and then, which a test of deadlines takes for
# a fault. So up to three tests that fail are run once more, alone. Those that pass then are named in the
# stage's line: who is named on many days has a fault of its own.
ctest=(ctest)
run_ctest() {
  local failures="build/$1/Testing/Temporary/LastTestsFailed.log"
  rm -f "$failures"
  "${ctest[@]}" --preset "$1" -j $((3 * jobs + 2)) "${@:2}"
  local status=$?
  # What tests say that they could not try.
  sed -n -e 's/^.*not tested: [0-9]* of [0-9]* tests: /left out: tests of Python, as /p;t' -e 's/^.*not tested: /left out: /p' \
    "build/$1/Testing/Temporary/LastTest.log" | sort -u
  [ "$status" -ne 0 ] || return 0
  [ -s "$failures" ] && [ "$(wc -l <"$failures")" -le 3 ] || return 1
  local names
  names=$(sed 's/^[0-9]*://' "$failures" | paste -sd ' ')
  echo "RUN AGAIN, ALONE: $names"
  # By their names: ctest --rerun-failed goes by numbers, which are others under other filters.
  "${ctest[@]}" --preset "$1" -j 1 --tests-regex "^(${names// /|})$" --no-tests=error &&
    echo "FAILED AT FIRST, PASSED ALONE: $names"
}

# Our sources, whether git knows them yet or not; not what a build made.
sources() { find include tests examples benchmarks -name '*.[hi]pp' -o -name '*.cpp'; }

stage_packages() {
  peerbus_need_packages g++ cmake ninja-build doctest-dev libbenchmark-dev libcli11-dev \
    nlohmann-json3-dev doxygen iproute2 libboost-context-dev libfabric-dev libhwloc-dev libibverbs-dev libsimgrid-dev libssl-dev ibverbs-providers libopenmpi-dev openmpi-bin systemtap-sdt-dev \
    libpmix-dev slurm-wlm munge pkg-config python3 python3-numpy abigail-tools "clang-format-$format_llvm"
}
stage_deep_packages() {
  peerbus_need_packages clang libclang-rt-dev g++-aarch64-linux-gnu qemu-user spin &&
    { peerbus_need_packages "clang-tidy-$newest_llvm" || peerbus_need_packages clang-tidy-19; } || return 1
  # Without them launchers.mpich is left out, and the stage flags says what it left out.
  peerbus_need_packages libmpich-dev mpich || true
  peerbus_need_packages "clang-$newest_llvm" "libc++-$newest_llvm-dev" "libc++abi-$newest_llvm-dev" || true
}

stage_format() { sources | xargs "clang-format-$format_llvm" --dry-run --Werror; }

stage_release() { build check; }
stage_test_release() { run_ctest check --label-exclude '^(report|search|model|verbs)$'; }
# In a guest with soft-RoCE, unless this host has an RDMA device.
stage_verbs() {
  run_ctest check --label-regex '^verbs$'
  local status=$?
  cat build/check/tests/verbs/results_of_guest/not_tested 2>/dev/null
  return $status
}

# The files of DeepEP's repository, by the Python of PEERBUS_PYTHON, at small sizes.
stage_deepep() {
  cmake --preset check && cmake --build --preset check --target peerbus_c -j "$jobs" || return 1
  PEERBUS_LIBRARY=$PWD/build/check/examples/embed/c/libpeerbus.so PYTHONPATH=$PWD/examples/embed/python \
    PYTHONDONTWRITEBYTECODE=1 python3 tests/embed_python/originals.py "$PEERBUS_DEEPEP"
}

# All headers under the flags, warnings and macros of other projects.
stage_flags() { bash tests/flags.sh; }
# Models of the protocols, whose states spin searches; soaks; MPICH; and random bytes for everything that reads bytes from
# outside: made up by a seed for what reads a network, and by a fuzzer that looks for new code.
stage_search() {
  # Once more, as the first gate may have had no spin.
  cmake --preset check >/dev/null && run_ctest check --label-regex '^(search|model)$' && build_fuzzer && run_fuzzer
}
# build/fuzz/fuzzer, whose targets PEERBUS_FUZZ_TARGET names. Not optimised, which takes less than half the time, and most
# of what targets do is system calls.
build_fuzzer() {
  local c=examples/embed/c
  local sources=(tests/fuzz/fuzzer.cpp benchmarks/support/npy.cpp "$c"/source/{exchange_input,failure,profile,tensors}.cpp)
  local flags=(-std=c++20 -gline-tables-only -O0 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined
    -Iinclude -Itests -Ibenchmarks "-I$c/include" "-I$c/source")
  rm -rf build/fuzz/objects && mkdir -p build/fuzz/objects
  printf '%s\n' "${sources[@]}" | xargs -P "$jobs" -I{} bash -c '
    ${CMAKE_CXX_COMPILER_LAUNCHER:-} clang++ "${@:2}" -c "$1" -o "build/fuzz/objects/$(basename "$1").o"' _ {} "${flags[@]}" &&
    clang++ "${flags[@]}" build/fuzz/objects/*.o -o build/fuzz/fuzzer -lssl -lcrypto
}
# All targets, which share PEERBUS_SEARCH_SECONDS: 200 gives each 20 s of one of two cores. What one finds is in
# build/fuzz. Mend the reader, and keep the input in tests/fuzz/corpus.
run_fuzzer() {
  local targets seconds
  mapfile -t targets < <(ls tests/fuzz/corpus)
  # Two at a time on a core. libFuzzer ends a second later than it is told.
  seconds=$((PEERBUS_SEARCH_SECONDS * 2 * jobs / ${#targets[@]} - 1))
  printf '%s\n' "${targets[@]}" | xargs -P $((2 * jobs)) -I{} bash -c '
    PEERBUS_FUZZ_TARGET=$1 build/fuzz/fuzzer -seed_inputs="$(ls -d tests/fuzz/corpus/"$1"/* | paste -sd ,)" -max_len=4096 \
      -timeout=20 -max_total_time="$2" -artifact_prefix="build/fuzz/$1-" >"build/fuzz/$1.log" 2>&1
    status=$?
    if [ "$status" -ne 0 ]; then tail -n 60 "build/fuzz/$1.log"; fi
    echo "$1: $(tail -n 1 "build/fuzz/$1.log")"
    exit "$status"' _ {} "$((seconds > 0 ? seconds : 1))"
}
stage_parse_time() { run_ctest check --label-regex '^report$' --verbose; }

# By clang++, so that this is also the build that shows that clang++ compiles everything but examples and benchmarks,
# which the stages flags and tidy parse.
stage_asan() { build asan; }
# These suites over ranks that are threads run over processes and over loopback here, and over threads by
# ThreadSanitizer, which leaves those over loopback to this build. Others have groups of threads here that are too
# large there (tests/support/sanitized.hpp). Searches take a third of their time: the stage search has all of it.
stage_test_asan() {
  PEERBUS_SEARCH_SECONDS=$(((PEERBUS_SEARCH_SECONDS + 2) / 3)) \
    run_ctest asan --exclude-regex '^(conformance\.(exchange|layouts)_unified_bus|deep_ep\..*)_threads$'
}

stage_tsan() { build tsan; }
# Some kernels place memory where ThreadSanitizer's runtime of g++ 12 cannot have it.
stage_test_tsan() {
  local fixed_addresses=(setarch "$(uname -m)" --addr-no-randomize)
  if ! "${fixed_addresses[@]}" true 2>/dev/null; then fixed_addresses=(); fi
  local ctest=("${fixed_addresses[@]}" ctest)
  run_ctest tsan --exclude-regex '^(conformance|deep_ep)\..*_loopback$'
}

# Not every test: what differs there is the kernels, and atomics in the core, though not their order,
# which is this machine's under emulation. The examples take a dispatch and a combine from process to
# process. Left out: what kills processes or reads much of /proc, as the emulator is in the way.
stage_aarch64() { build aarch64; }
stage_test_aarch64() { run_ctest aarch64; }

# By the commands of the build by clang++, with all programs and without their precompiled header, so that this also
# shows that none of them lacks an include. The analyser starts at functions of the main file only. So it gets
# the text of all our headers, with instances of their templates, as one file, and sources that are compiled
# several at a time as the text of all of them. It follows each function through so many states at most: by
# its own limit, which is eleven times that, it takes five times as long, and found five of seven defects
# that were put there to try it, where this finds all.
analysed_states=20000
stage_tidy() {
  rm -rf build/tidy # CMake leaves unity sources there that it does not use any more.
  cmake --preset asan -B build/tidy -DPEERBUS_BUILD_BENCHMARKS=ON -DPEERBUS_BUILD_EXAMPLES=ON && write_library build/tidy/tests/all_headers.cpp || return 1
  local tidy=clang-tidy-$newest_llvm
  command -v "$tidy" >/dev/null || tidy=clang-tidy-19
  # Our headers are checked as one file, with the instances that it has. clang-tidy does not look for anything in
  # system headers.
  # The newest clang-tidy has no header for what only sanitizers compile.
  sed -i -e "s| -I$PWD/include | -isystem $PWD/include |" -e 's/ -fsanitize=[^ "]*//g' build/tidy/compile_commands.json
  find build/tidy -path '*/Unity/unity_0_cxx.cxx' | while read -r unity; do join_sources "$unity"; done
  # Not the tests: the analyser takes longer over their instantiations than everything else here. Not
  # cmake/compiled: the text of all headers has the same bodies. Of libpeerbus's codecs only bf16: the others
  # have the same text. Not C: the checks are for C++. The analyser believes that functions of system headers
  # never keep a pointer; Google Benchmark's do. The file that takes longest comes first.
  {
    echo "$PWD/build/tidy/tests/all_headers.cpp"
    sed -n 's/^ *"file": "\(.*\)".*$/\1/p' build/tidy/compile_commands.json |
      grep -v -e '/all_headers' -e '/headers_alone/' -e "^$PWD/tests/" -e "^$PWD/build/tidy/tests/.*/Unity/" -e '/unity_[1-9][0-9]*_cxx.cxx$' -e "^$PWD/cmake/" -e '/unity_.*codecs_cxx.cxx$' -e '\.c$' -e '/cmake_pch.hxx' | sort -u
  } | xargs -P "$jobs" -n 1 bash -c 'started=$SECONDS; "$@"; status=$?
      echo "$((SECONDS - started)) s for ${*: -1}"; exit "$status"' _ \
    "$tidy" -p build/tidy --quiet --warnings-as-errors='*' \
    --extra-arg=--no-system-header-prefix=benchmark/ --extra-arg=-Xclang --extra-arg=-analyzer-config \
    --extra-arg=-Xclang --extra-arg="max-nodes=$analysed_states"
}
# Puts the text of the headers that a source includes, and of tests/support/analysed_instances.txt, for the
# source. A system header is included where it comes first.
write_library() {
  local headers
  headers=$(sed -n 's/^#include <\(.*\)>$/\1/p' "$1") || return 1
  # shellcheck disable=SC2086 # One argument for each.
  python3 cmake/single_header.py $headers --output "$1.text" || return 1
  { grep -v '^#pragma once$' "$1.text"; cat tests/support/analysed_instances.txt; } |
    awk '!/^#include/ || !seen[$0]++' >"$1"
}
# Replaces the includes in the unity sources of a program by the text of the included sources, in the first
# of them. A finding then names that source, which says whose text it is.
join_sources() {
  local source joined
  joined=$(cat "${1%/*}"/unity_[0-9]*_cxx.cxx | sed -n 's/^#include "\(.*\.cpp\)"$/\1/p' | while read -r source; do
    # After an #undef, clang-tidy accepts includes of the source before again.
    printf '// %s\n#undef SOURCE_BEFORE\n' "$source"
    sed "s|^#include \"\([^/]*\)\"|#include \"${source%/*}/\1\"|" "$source" # It lies beside the source.
  done)
  if [ -n "$joined" ]; then printf '%s\n' "$joined" >"$1"; fi
}

stages=("${first_gate[@]}" "${deep_stages[@]}")
if [ -z "${PEERBUS_DEEPEP:-}" ]; then stages+=(deepep); fi
if [ "${1:-}" = --list ]; then
  printf '%s\n' "${stages[@]}"
  exit 0
fi
left_out=""
if [ $# -eq 0 ]; then
  stages=("${first_gate[@]}")
  left_out="Left out: ${deep_stages[*]}
They hold the tests whose ranks are threads, which only the builds with sanitizers have, the verbs transport in a guest,
clang, and soaks. They take about four times as long: bash tests/run.sh all"
elif [ "$*" = all ]; then
  stages=("${first_gate[@]}" "${deep_stages[@]}")
else
  for name in "$@"; do
    if ! printf '%s\n' "${stages[@]}" | grep -qxF -- "$name"; then
      echo "tests/run.sh: no stage '$name'; expected all, or some of: ${stages[*]}" >&2
      exit 2
    fi
  done
  stages=("$@")
fi

passed=0
failed=0
broken=""
current=""

finish() {
  local status=$?
  if [ -n "$current" ]; then # Interrupted.
    broken=$current
    failed=$((failed + 1))
  fi
  if [ -n "$broken" ]; then
    echo "FAILED in stage '$broken'; its output is in $logs/$broken.log"
    if [ "$status" -eq 0 ]; then status=1; fi
  fi
  if [ -n "$left_out" ]; then echo "$left_out"; fi
  echo "in $((SECONDS / 60)) min $((SECONDS % 60)) s"
  echo "$passed passed, $failed failed"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Adds what ctest counted in the stage's log, if it ran: all tests in its first run, failures in its last.
count_tests() {
  local summary='tests passed, \([0-9]*\) tests\{0,1\} failed out of \([0-9]*\)'
  local counts bad all
  counts=$(sed -n "s/^.*$summary.*$/\1 \2/p" "$1")
  if [ -z "$counts" ]; then return; fi
  read -r _ all < <(head -n 1 <<<"$counts")
  read -r bad _ < <(tail -n 1 <<<"$counts")
  passed=$((passed + all - bad))
  failed=$((failed + bad))
}

# Returns whether a stage may start. A deep stage may not if it, with its tests, would end after PEERBUS_MINUTES, as this
# machine has been so far; nor may the tests of one that did not start.
usually_took=0 # The stages that have ended.
out_of_time=""
ends_in_time() {
  case " ${deep_stages[*]} " in *" $1 "*) ;; *) return 0 ;; esac
  case " $out_of_time " in *" ${1#test_} "*) return 1 ;; esac
  [ -n "${PEERBUS_MINUTES:-}" ] && [ "$usually_took" -gt 0 ] || return 0
  local usual=$((${usual_seconds[$1]:-0} + ${usual_seconds[test_$1]:-0}))
  [ $((SECONDS + usual * SECONDS / usually_took)) -le $((60 * PEERBUS_MINUTES)) ]
}

mkdir -p "$logs"
number=0
for name in "${stages[@]}"; do
  number=$((number + 1))
  printf '[%d/%d] %-14s' "$number" "${#stages[@]}" "$name"
  if ! ends_in_time "$name"; then
    out_of_time+=" $name"
    left_out="NOT RUN and not counted, as they would not have ended in $PEERBUS_MINUTES minutes:$out_of_time"
    echo "NOT RUN and not counted: it would not end in $PEERBUS_MINUTES minutes"
    continue
  fi
  current=$name
  if [ "$name" = deepep ] && [ -z "${PEERBUS_DEEPEP:-}" ]; then
    current=""
    echo "not run and not counted: PEERBUS_DEEPEP names no checkout of DeepEP"
    continue
  fi
  started=$SECONDS
  "stage_$name" >"$logs/$name.log" 2>&1
  status=$?
  current=""
  count_tests "$logs/$name.log"
  if [ "$status" -ne 0 ]; then
    failed=$((failed + 1))
    broken=$name
    printf 'FAILED (%d s), status %d; the end of its output:\n' $((SECONDS - started)) "$status"
    tail -n 200 "$logs/$name.log"
    exit 1
  fi
  passed=$((passed + 1))
  usually_took=$((usually_took + ${usual_seconds[$name]:-0}))
  printf 'ok %5d s   %s\n' $((SECONDS - started)) \
    "$(grep -hE 'tests passed|^.*parse time of|VERBS WERE NOT TESTED|^FAILED AT FIRST' "$logs/$name.log" | sed 's/^[0-9]*: *-- //' | paste -sd ';' | sed 's/;/; /g')"
  sed -n 's/^original: /        /p' "$logs/$name.log"
  # What this machine has no means for: checks, tests that skip themselves, and what was not built.
  {
    grep '^left out: ' "$logs/$name.log"
    sed -n 's/^[[:space:]]*[0-9]* - \(.*\) (Skipped).*$/left out: \1/p' "$logs/$name.log"
    if [ "$name" = release ]; then sed -n '/Check for/d;s/^-- \(.*\(left out\|not tested\|skipped\|not found\).*\)$/left out: \1/p' "$logs/$name.log"; fi
  } | sort -u | sed 's/^/        /'
done
