#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# mpich.sh FOLDER LIBRARY: compiles mpi_ranks.cpp with MPICH, and starts four ranks twice: of a session, and by MPI_Init.
# Skipped, by status 77, if this MPICH has no sessions.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
printf '#include <mpi.h>\n#if MPI_VERSION < 4\n#error\n#endif\n' | mpicxx.mpich -x c++ -E - >/dev/null 2>&1 || exit 77
mpicxx.mpich -std=c++20 -O0 -DPEERBUS_COMPILED -I"$here/../../include" -I"$here/.." "$here/mpi_ranks.cpp" "$2" \
  -lssl -lcrypto -pthread -o "$1/mpi_ranks"
setpriv --pdeathsig TERM mpirun.mpich -n 4 "$1/mpi_ranks" session
setpriv --pdeathsig TERM mpirun.mpich -n 4 "$1/mpi_ranks"
