# SPDX-License-Identifier: MIT
# peerbus::topology: the headers of include/peerbus/topology, which need hwloc. An installed peerbus
# makes the target anew where it is used (peerbus-config.cmake), so that installing needs no hwloc.
include("${CMAKE_CURRENT_LIST_DIR}/peerbus_hwloc.cmake")
peerbus_find_hwloc(peerbus_hwloc_problem)
if(peerbus_hwloc_problem)
  message(STATUS "peerbus::topology is left out: ${peerbus_hwloc_problem}")
else()
  add_library(peerbus_topology INTERFACE)
  add_library(peerbus::topology ALIAS peerbus_topology)
  target_sources(peerbus_topology INTERFACE FILE_SET HEADERS BASE_DIRS include
                                            FILES ${peerbus_topology_headers})
  target_link_libraries(peerbus_topology INTERFACE peerbus::peerbus peerbus::hwloc)
endif()
