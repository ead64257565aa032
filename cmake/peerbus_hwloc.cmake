# SPDX-License-Identifier: MIT
# For peerbus's own build and for its installed package alike.
#
# peerbus_find_hwloc(<variable>): makes the target peerbus::hwloc if hwloc 2 is found, and sets
# <variable> to the empty string or to what is missing. hwloc has no CMake package of its own in
# most distributions; it is looked for where find_library looks (CMAKE_PREFIX_PATH), and where
# pkg-config points to.
function(peerbus_find_hwloc problem)
  set("${problem}" "" PARENT_SCOPE)
  if(TARGET peerbus::hwloc)
    return()
  endif()
  # The machine's own pkg-config knows nothing of another machine's libraries.
  if(NOT CMAKE_CROSSCOMPILING)
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND)
      pkg_check_modules(PEERBUS_PC_HWLOC QUIET hwloc)
    endif()
  endif()
  find_path(PEERBUS_HWLOC_INCLUDE_DIR hwloc.h HINTS ${PEERBUS_PC_HWLOC_INCLUDEDIR})
  find_library(PEERBUS_HWLOC_LIBRARY hwloc HINTS ${PEERBUS_PC_HWLOC_LIBDIR})
  mark_as_advanced(PEERBUS_HWLOC_INCLUDE_DIR PEERBUS_HWLOC_LIBRARY)
  if(NOT PEERBUS_HWLOC_INCLUDE_DIR OR NOT PEERBUS_HWLOC_LIBRARY)
    set("${problem}" "hwloc was not found (Debian: libhwloc-dev)" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS "${PEERBUS_HWLOC_INCLUDE_DIR}/hwloc.h" version REGEX "define HWLOC_API_VERSION 0x")
  if(NOT version MATCHES "0x000[2-9a-f]")
    set("${problem}" "${PEERBUS_HWLOC_INCLUDE_DIR}/hwloc.h is older than hwloc 2.0" PARENT_SCOPE)
    return()
  endif()
  add_library(peerbus::hwloc UNKNOWN IMPORTED GLOBAL)
  set_target_properties(
    peerbus::hwloc PROPERTIES IMPORTED_LOCATION "${PEERBUS_HWLOC_LIBRARY}"
                              INTERFACE_INCLUDE_DIRECTORIES "${PEERBUS_HWLOC_INCLUDE_DIR}")
endfunction()
