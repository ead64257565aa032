# SPDX-License-Identifier: MIT
# Installs the headers and the CMake package that peerbus_package.cmake made.

install(TARGETS peerbus EXPORT peerbus_targets FILE_SET HEADERS)
foreach(header IN LISTS peerbus_fabric_headers peerbus_mpi_headers peerbus_pmix_headers peerbus_simulated_headers peerbus_tcp_headers peerbus_topology_headers
                        peerbus_verbs_headers)
  cmake_path(GET header PARENT_PATH folder)
  string(REGEX REPLACE "^include" "${CMAKE_INSTALL_INCLUDEDIR}" folder "${folder}")
  install(FILES "${header}" DESTINATION "${folder}")
endforeach()
install(
  EXPORT peerbus_targets
  NAMESPACE peerbus::
  FILE peerbus-targets.cmake
  DESTINATION "${peerbus_package_dir}")

install(
  FILES "${PROJECT_BINARY_DIR}/peerbus-config.cmake"
        "${PROJECT_BINARY_DIR}/peerbus-config-version.cmake"
        "${CMAKE_CURRENT_LIST_DIR}/peerbus_parts.cmake"
  DESTINATION "${peerbus_package_dir}")
install(DIRECTORY "${CMAKE_CURRENT_LIST_DIR}/compiled" DESTINATION "${peerbus_package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/peerbus")
include(cmake/peerbus_pkg_config.cmake)
