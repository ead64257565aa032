# SPDX-License-Identifier: MIT
# Packs the checkout that this file lies in: vcpkg install peerbus --overlay-ports=CHECKOUT/cmake/vcpkg

get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(VCPKG_BUILD_TYPE release) # Nothing is compiled.

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DPEERBUS_BUILD_TESTS=OFF
    -DPEERBUS_BUILD_EXAMPLES=OFF
    -DPEERBUS_BUILD_BENCHMARKS=OFF
    -DPEERBUS_INSTALL_CMAKEDIR=share/peerbus)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup()
vcpkg_fixup_pkgconfig(SKIP_CHECK) # Some of the files are for libraries that vcpkg does not have.

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
