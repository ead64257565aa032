# SPDX-License-Identifier: MIT
# The CMake package in the build folder: what is installed, if anything is, and what makes a library that links peerbus and
# is exported from its build folder complete.
include(CMakePackageConfigHelpers)

# share/ rather than lib/: headers serve every architecture of a prefix. Package managers may have folders of
# their own for this.
set(PEERBUS_INSTALL_CMAKEDIR "${CMAKE_INSTALL_DATADIR}/cmake/peerbus"
    CACHE STRING "Folder of the CMake package, below the prefix")
mark_as_advanced(PEERBUS_INSTALL_CMAKEDIR)
set(peerbus_package_dir "${PEERBUS_INSTALL_CMAKEDIR}")

configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/peerbus-config.cmake.in"
  "${PROJECT_BINARY_DIR}/peerbus-config.cmake"
  INSTALL_DESTINATION "${peerbus_package_dir}"
  NO_SET_AND_CHECK_MACRO)
# Until 1.0.0 a new minor version may break its users.
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/peerbus-config-version.cmake"
  COMPATIBILITY SameMinorVersion
  ARCH_INDEPENDENT)
# Who gives a range says which versions will do.
file(READ "${PROJECT_BINARY_DIR}/peerbus-config-version.cmake" text)
file(WRITE "${PROJECT_BINARY_DIR}/peerbus-config-version.cmake" "set(PACKAGE_VERSION \"${PROJECT_VERSION}\")" [[

if(PACKAGE_FIND_VERSION_RANGE)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
  if(PACKAGE_VERSION VERSION_GREATER_EQUAL PACKAGE_FIND_VERSION_MIN
     AND (PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION_MAX
          OR (PACKAGE_FIND_VERSION_RANGE_MAX STREQUAL "INCLUDE" AND PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION_MAX)))
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
  endif()
  return()
endif()
]] "${text}")

export(TARGETS peerbus NAMESPACE peerbus:: FILE "${PROJECT_BINARY_DIR}/peerbus-targets.cmake")
file(WRITE "${PROJECT_BINARY_DIR}/peerbus_parts.cmake" "include([=[${CMAKE_CURRENT_LIST_DIR}/peerbus_parts.cmake]=])\n")

# find_package finds what the project has as a subfolder, by FetchContent or without, before anything that is installed.
if(NOT PROJECT_IS_TOP_LEVEL)
  foreach(file IN ITEMS peerbus-config.cmake peerbus-config-version.cmake)
    file(WRITE "${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/${file}" "include([=[${PROJECT_BINARY_DIR}/${file}]=])\n")
  endforeach()
endif()

# peerbus_folders_of_pc(<folder of the file>): what its lines prefix and includedir say, for peerbus.pc.in and
# peerbus_c.pc.in. Distributions may give folders that are not below the prefix.
function(peerbus_folders_of_pc pc_dir)
  if(IS_ABSOLUTE "${pc_dir}")
    set(prefix "${CMAKE_INSTALL_PREFIX}")
  else()
    # Relative to the file itself, so that the prefix may be moved.
    file(RELATIVE_PATH to_prefix "/${pc_dir}" "/")
    string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
    set(prefix "\${pcfiledir}/${to_prefix}")
  endif()
  set(pc_prefix "${prefix}" PARENT_SCOPE)
  foreach(folder IN ITEMS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR peerbus_package_dir)
    set("pc_${folder}" "\${prefix}/${${folder}}" PARENT_SCOPE)
    if(IS_ABSOLUTE "${${folder}}")
      set("pc_${folder}" "${${folder}}" PARENT_SCOPE)
    endif()
  endforeach()
endfunction()
