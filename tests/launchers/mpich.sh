#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# mpich.sh FOLDER LIBRARY: compiles mpi_ranks.cpp with MPICH, whose MPI has sessions, and starts four ranks: of a session,
# and by MPI_Init, which MPICH 4.0 does not survive in a process that had a session.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
mpicxx.mpich -std=c++20 -O0 -DPEERBUS_COMPILED -I"$here/../../include" -I"$here/.." "$here/mpi_ranks.cpp" "$2" \
  -lssl -lcrypto -pthread -o "$1/mpi_ranks"
for ranks_of in session ""; do
  # shellcheck disable=SC2086 # None, if it is empty.
  setpriv --pdeathsig TERM mpirun.mpich -n 4 "$1/mpi_ranks" $ranks_of
done
