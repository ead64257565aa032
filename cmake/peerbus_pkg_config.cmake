# SPDX-License-Identifier: MIT
# Files for pkg-config: peerbus.pc, and peerbus-<part>.pc for each part whose library has a name there. They are
# installed whether the library is here or not; pkg-config names it where it is missing.

set(peerbus_pc_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")

# peerbus_install_pc(<name> <description> <requires> <cflags> <libs>)
function(peerbus_install_pc name description requires cflags libs)
  peerbus_folders_of_pc("${peerbus_pc_dir}")
  set(file "${PROJECT_BINARY_DIR}/${name}.pc")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/peerbus.pc.in" "${file}" @ONLY)
  install(FILES "${file}" DESTINATION "${peerbus_pc_dir}")
endfunction()

peerbus_install_pc(peerbus "${PROJECT_DESCRIPTION}" "" "-I\${includedir}" -pthread)
# MPI has no name that all of its makers share: programs with mpi_bootstrap take peerbus-tcp and mpicxx. Boost has none
# at all: programs with simulated take peerbus and -lboost_context.
set(peerbus_pc_of_fabric "libfabric >= 1.14")
set(peerbus_pc_of_pmix "openssl >= 3.0, pmix >= 3.0")
set(peerbus_pc_of_tcp "openssl >= 3.0")
set(peerbus_pc_of_topology "hwloc >= 2.0")
set(peerbus_pc_of_verbs "libibverbs >= 1.11.32") # rdma-core 32
foreach(part IN ITEMS fabric pmix tcp topology verbs)
  peerbus_install_pc("peerbus-${part}" "peerbus with the library that its part ${part} needs"
                     "peerbus = ${PROJECT_VERSION}, ${peerbus_pc_of_${part}}" "" "")
endforeach()
