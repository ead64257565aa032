# SPDX-License-Identifier: MIT
# peerbus::verbs: the headers of include/peerbus/transport/verbs, which need libibverbs. An installed
# peerbus makes the target anew where it is used, as it does peerbus::topology.
include("${CMAKE_CURRENT_LIST_DIR}/peerbus_ibverbs.cmake")
peerbus_find_ibverbs(peerbus_ibverbs_problem)
if(peerbus_ibverbs_problem)
  message(STATUS "peerbus::verbs is left out: ${peerbus_ibverbs_problem}")
else()
  add_library(peerbus_verbs INTERFACE)
  add_library(peerbus::verbs ALIAS peerbus_verbs)
  target_sources(peerbus_verbs INTERFACE FILE_SET HEADERS BASE_DIRS include
                                         FILES ${peerbus_verbs_headers})
  target_link_libraries(peerbus_verbs INTERFACE peerbus::peerbus peerbus::ibverbs)
endif()
