# SPDX-License-Identifier: MIT
# For peerbus's own build and for its installed package alike.
#
# peerbus_find_ibverbs(<variable>): makes the target peerbus::ibverbs if libibverbs of rdma-core is
# found, and sets <variable> to the empty string or to what is missing. It is looked for where
# find_library looks (CMAKE_PREFIX_PATH), and where pkg-config points to.
function(peerbus_find_ibverbs problem)
  set("${problem}" "" PARENT_SCOPE)
  if(TARGET peerbus::ibverbs)
    return()
  endif()
  # The machine's own pkg-config knows nothing of another machine's libraries.
  if(NOT CMAKE_CROSSCOMPILING)
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND)
      pkg_check_modules(PEERBUS_PC_IBVERBS QUIET libibverbs)
    endif()
  endif()
  find_path(PEERBUS_IBVERBS_INCLUDE_DIR infiniband/verbs.h HINTS ${PEERBUS_PC_IBVERBS_INCLUDEDIR})
  find_library(PEERBUS_IBVERBS_LIBRARY ibverbs HINTS ${PEERBUS_PC_IBVERBS_LIBDIR})
  mark_as_advanced(PEERBUS_IBVERBS_INCLUDE_DIR PEERBUS_IBVERBS_LIBRARY)
  if(NOT PEERBUS_IBVERBS_INCLUDE_DIR OR NOT PEERBUS_IBVERBS_LIBRARY)
    set("${problem}" "libibverbs was not found (Debian: libibverbs-dev)" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS "${PEERBUS_IBVERBS_INCLUDE_DIR}/infiniband/verbs.h" found REGEX "ibv_query_gid_table")
  if(NOT found)
    set("${problem}" "${PEERBUS_IBVERBS_INCLUDE_DIR}/infiniband/verbs.h is older than rdma-core 33"
        PARENT_SCOPE)
    return()
  endif()
  add_library(peerbus::ibverbs UNKNOWN IMPORTED GLOBAL)
  set_target_properties(
    peerbus::ibverbs PROPERTIES IMPORTED_LOCATION "${PEERBUS_IBVERBS_LIBRARY}"
                                INTERFACE_INCLUDE_DIRECTORIES "${PEERBUS_IBVERBS_INCLUDE_DIR}")
endfunction()
