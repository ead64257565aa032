#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Compiles all headers as programs do that are built with other flags, warnings, macros and libraries than peerbus's
# own tests: a line per combination, and examples and benchmarks by an old compiler. Some must be refused, by one text
# that says why. Compilers that are not here are left out, with a line (Debian: clang-22 libc++-22-dev
# libc++abi-22-dev).

set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor -Wold-style-cast
-Wcast-align -Wunused -Woverloaded-virtual -Wnull-dereference -Wdouble-promotion -Wformat=2 -Wimplicit-fallthrough -Werror"
of_gnu="-Wmisleading-indentation -Wduplicated-cond -Wduplicated-branches -Wlogical-op -Wsuggest-override -Wuseless-cast -Wcast-align=strict"
# The headers of other libraries are found as those of a system are.
others=$(pkg-config --cflags-only-I libfabric hwloc pmix openssl libibverbs 2>/dev/null | sed 's/-I */-isystem /g')
others+=" $(mpicxx --showme:compile 2>/dev/null | grep -o -e '-I[^ ]*' | sed 's/-I/-isystem /' | tr '\n' ' ')"

# What all headers are compiled after and before.
cat >"$work/macros.hpp" <<'END'
#define check(expression) static_assert(expression)
#define verify(expression) static_assert(expression)
#define emit
#define foreach for
END
(cd include && find peerbus -name '*.hpp' | sort | sed 's/.*/#include <&>/') >"$work/list"
{
  cat "$work/list"
  cat <<'END'
#if defined(container_of) || defined(count_of)
#error "a macro of libfabric is left"
#endif
int main() {}
END
} >"$work/all.cpp"
# Those that a program may include first.
entries="peerbus collective moe/exchange compat/deep_ep compat/cann transport/fabric transport/verbs bootstrap/tcp bootstrap/mpi topology/machine"
for entry in $entries; do
  printf '#include <peerbus/%s.hpp>\nint main() {}\n' "$entry" >"$work/${entry//\//_}.cpp"
done
# With the members of templates, too.
cat "$work/list" tests/support/analysed_instances.txt >"$work/instances.cpp"

# one <name> <text of the error, or -> <command>...
one() {
  local name=$1 expected=$2 output status started=$SECONDS
  shift 2
  if ! command -v "$1" >/dev/null; then
    echo "left out: $name: there is no $1"
    return 0
  fi
  output=$("$@" -fsyntax-only 2>&1)
  status=$?
  if [[ $expected == - && $status == 0 && -z $output ]] ||
    [[ $expected != - && $status != 0 && $output == *"$expected"* ]]; then
    printf 'passed %3d s  %s\n' $((SECONDS - started)) "$name"
    return 0
  fi
  [[ $expected == - ]] || output="expected the error '$expected', got status $status and: $output"
  printf 'FAILED        %s: %s\n%s\n' "$name" "$*" "$(head -n 30 <<<"$output")"
  return 1
}
export -f one

# add <name> <text of the error, or -> <command>...: a line for xargs
add() { printf '%q ' "$@"; echo; }
all() { add "$1" - "${@:2}" $others -I include "$work/all.cpp"; }
refused() {
  local entry
  for entry in $entries; do
    add "$1, $entry.hpp" "$2" "${@:3}" -Wfatal-errors $others -I include "$work/${entry//\//_}.cpp"
  done
}
{
  add "g++, C++20, optimised, warnings, in templates too, names of a program" - g++ -std=c++20 -O2 -D_GLIBCXX_ASSERTIONS $warnings $of_gnu \
    -include tests/package/consumer/names.hpp $others -I include "$work/instances.cpp"
  all "g++, C++23, no run-time types, debug containers" g++ -std=c++23 -fno-rtti -D_GLIBCXX_DEBUG -D_GLIBCXX_DEBUG_PEDANTIC
  all "g++, C++20 with extensions, unsigned char, debug containers, old strings, macros of others" \
    g++ -std=gnu++20 -funsigned-char -D_GLIBCXX_USE_CXX11_ABI=0 -D_GLIBCXX_CONCEPT_CHECKS -D_GLIBCXX_DEBUG -D_GLIBCXX_DEBUG_PEDANTIC -include tests/compile_modes.cpp -include "$work/macros.hpp"
  all "clang++-14, C++20, warnings, no run-time types" clang++-14 -std=c++20 -fno-rtti $warnings
  all "clang++-22, C++26, libstdc++, warnings" clang++-22 -std=c++26 $warnings
  # Boost.Context 1.74 wants std::result_of.
  for standard in 20 23 26; do
    all "clang++-22, C++$standard, libc++, checks" clang++-22 -stdlib=libc++ -std=c++$standard $warnings \
      -D_LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_DEBUG -D_LIBCPP_ENABLE_CXX20_REMOVED_TYPE_TRAITS
  done
  refused "libc++ before 20" "peerbus needs libc++ 20 or newer" g++ -std=c++20 -D_LIBCPP_VERSION=190000
  refused "no exceptions" "expected to be compiled without -fno-exceptions" g++ -std=c++20 -fno-exceptions
  refused "32 bits" "peerbus needs a 64-bit machine" g++ -std=c++20 -U__SIZEOF_POINTER__ -D__SIZEOF_POINTER__=4
  refused "Qt's keywords" "compile with QT_NO_KEYWORDS" g++ -std=c++20 -Dsignals=public -Dslots=
  refused "a macro version" "'version' is a macro" g++ -std=c++20 -Dversion=1
  # No build by clang++ 14 has the examples and benchmarks. The sources of a folder as one, and their library's bodies
  # not again.
  programs="clang++-14 -std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -DPEERBUS_COMPILED
    -DPEERBUS_BENCH_C=1 -DPEERBUS_BENCH_FABRIC=1 -DPEERBUS_BENCH_HWLOC=1 -DPEERBUS_BENCH_MPI=1 -DPEERBUS_BENCH_TCP=1
    -DPEERBUS_BENCH_VERBS=1 -DPEERBUS_BENCH_UCX=0 -DPEERBUS_BENCH_PAGE=\"\" -DEP_PREDICT_PAGE=1 -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX
    -DPEERBUS_DOCTOR_FABRIC -DPEERBUS_DOCTOR_TCP -DPEERBUS_DOCTOR_VERBS -DMOE_TEXT_VERBS $others
    -I include -I benchmarks -I examples -I examples/peerbus_doctor -I examples/peerbus_doctor/checks -I .
    -I examples/embed/c/include"
  precompiled=()
  if $programs -x c++-header examples/support/precompiled.hpp -o "$work/programs.pch" 2>/dev/null; then
    precompiled=(-include-pch "$work/programs.pch")
  fi
  for folder in $(find examples/*/ benchmarks -name '*.cpp' -printf '%h\n' | grep -v '^examples/embed' | sort -u); do
    printf '#include "%s"\n' "$PWD/$folder"/*.cpp >"$work/${folder//\//_}.cpp"
    add "clang++-14, $folder" - $programs "${precompiled[@]}" "$work/${folder//\//_}.cpp"
  done
  for program in examples/*.cpp; do add "clang++-14, $program" - $programs "${precompiled[@]}" "$program"; done
} >"$work/jobs"

# Each line of jobs is quoted for a shell.
xargs -P "$(nproc)" -d '\n' -n 1 bash -c 'eval "one $1"' _ <"$work/jobs"
