# SPDX-License-Identifier: MIT
# `cpack` makes the Debian package peerbus-dev of what `cmake --install` installs and of the pages in docs/.

set(CPACK_GENERATOR DEB)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PACKAGE_CONTACT "the peerbus authors")
set(CPACK_DEBIAN_PACKAGE_NAME peerbus-dev)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all) # Nothing in it is compiled.
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS
    "cmake (>= 3.25), libboost-context-dev, libfabric-dev, libhwloc-dev, libibverbs-dev, libopenmpi-dev, libpmix-dev, libssl-dev (>= 3.0), pkg-config")

# Where Debian expects them. Nobody else installs this component.
set(folder "${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_PACKAGE_NAME}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${folder}" RENAME copyright COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_SOURCE_DIR}/README.md" DESTINATION "${folder}" COMPONENT debian EXCLUDE_FROM_ALL)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" DESTINATION "${folder}" COMPONENT debian EXCLUDE_FROM_ALL)
set(CPACK_INSTALL_CMAKE_PROJECTS "")
foreach(component IN ITEMS ALL debian)
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR}" "${PROJECT_NAME}" "${component}" /)
endforeach()

include(CPack)
