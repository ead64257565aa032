# SPDX-License-Identifier: MIT
# Uses peerbus as a stranger would, WAY = find_package, add_subdirectory, include_path, compiled (with
# that target), export (by a library that is exported itself), fabric, mpi, pmix, tcp, topology or verbs (the first two, with that part), c (the library for C), deb (with
# pkg-config) or single_header: builds the consumer from scratch in WORK_DIR and runs it. recipes checks what
# package managers read, which cannot run here.
# CMakeLists.txt says which variables it takes.

set(consumers "${SOURCE_DIR}/tests/package")
file(REMOVE_RECURSE "${WORK_DIR}")
file(MAKE_DIRECTORY "${WORK_DIR}")
# The caller's flags (a sanitizer's, say) are not the consumer's.
foreach(name IN ITEMS CXXFLAGS CPPFLAGS LDFLAGS CMAKE_PREFIX_PATH peerbus_DIR PKG_CONFIG_PATH)
  unset(ENV{${name}})
endforeach()

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
endfunction()

# configure_consumer(<folder> <name of the build folder> <option>...)
function(configure_consumer folder build)
  run("${CMAKE_COMMAND}" -S "${consumers}/${folder}" -B "${WORK_DIR}/${build}" -G "${GENERATOR}"
      "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}" ${ARGN})
endfunction()

function(build_and_run_consumer folder)
  configure_consumer("${folder}" build ${ARGN})
  run("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
  run("${WORK_DIR}/build/consumer")
endfunction()

# Compiles, links and runs two translation units of one program.
function(compile_and_run_consumer)
  set(sources "${consumers}/consumer/main.cpp" "${consumers}/consumer/other.cpp")
  run("${COMPILER}" -std=c++20 -Wall -Wextra -Werror ${sources} ${ARGN} -o "${WORK_DIR}/consumer")
  run("${WORK_DIR}/consumer")
endfunction()

# Sets `result` to the flags of this version of `package`, as pkg-config knows it with its file below `prefix`.
function(ask_pkg_config result prefix package)
  set(ENV{PKG_CONFIG_PATH} "${prefix}/share/pkgconfig")
  execute_process(COMMAND "${PKG_CONFIG}" --cflags --libs "${package} = ${VERSION}" OUTPUT_VARIABLE flags
                  COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  set("${result}" ${flags} PARENT_SCOPE)
endfunction()

# g++ optimises for size what it takes for seldom used: here, what the user's function shares with
# functions of ours that are marked so. Fails if that is most of the function.
function(require_optimised object function)
  execute_process(COMMAND objdump --syms "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]*${function}[^\n]*" symbols "${symbols}")
  set(often 0)
  set(seldom 0)
  foreach(symbol IN LISTS symbols)
    if(symbol MATCHES " F [.]text.*\t([0-9a-f]+) ")
      set(bytes "0x${CMAKE_MATCH_1}")
      if(symbol MATCHES " F [.]text[.]unlikely")
        math(EXPR seldom "${seldom} + ${bytes}")
      else()
        math(EXPR often "${often} + ${bytes}")
      endif()
    endif()
  endforeach()
  if(NOT often GREATER seldom)
    message(FATAL_ERROR "${function}: ${often} bytes of code are optimised, ${seldom} are taken for seldom used; is a function that succeeds marked gnu::cold?")
  endif()
endfunction()

if(WAY STREQUAL "find_package")
  # Moved after it was installed: the package must not remember where it was put first.
  run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/first")
  file(RENAME "${WORK_DIR}/first" "${WORK_DIR}/prefix")
  build_and_run_consumer("${WAY}" "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix" "-DEXPECTED_VERSION=${VERSION}"
                         "-DEXPECTED_PREFIX=${WORK_DIR}/prefix")
elseif(WAY MATCHES "^(fabric|mpi|pmix|tcp|topology|verbs)$")
  run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
  build_and_run_consumer(part "-DPART=${WAY}" "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix")
  if(NOT WAY MATCHES "^(mpi|pmix)$") # Which differ from tcp by one more library.
    build_and_run_consumer(part "-DPART=${WAY}" "-DPEERBUS_SOURCE=${SOURCE_DIR}")
  endif()
  if(PKG_CONFIG AND NOT WAY STREQUAL "mpi")
    ask_pkg_config(flags "${WORK_DIR}/prefix" "peerbus-${WAY}")
    set(library_of_fabric fabric)
    set(library_of_pmix pmix)
    set(library_of_tcp ssl)
    set(library_of_topology hwloc)
    set(library_of_verbs ibverbs)
    if(NOT "${flags}" MATCHES "-pthread.*-l${library_of_${WAY}}")
      message(FATAL_ERROR "peerbus-${WAY}.pc gives '${flags}'; expected -pthread and -l${library_of_${WAY}}")
    endif()
  endif()
elseif(WAY STREQUAL "compiled")
  # Brackets in the name of a folder are no pattern.
  run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix[1]")
  build_and_run_consumer(compiled "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix[1]")
elseif(WAY STREQUAL "export")
  # Of an installed peerbus, whose users make the targets anew, and of one in a subfolder. No user is built: that
  # the targets link is tested by the ways of their names.
  run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
  configure_consumer(export of_installed "-DPARTS=${PARTS}" "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix")
  configure_consumer(of_exported of_installed_user "-Dstranger_DIR=${WORK_DIR}/of_installed"
                     "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix")
  configure_consumer(export of_subfolder "-DPARTS=${PARTS}" "-DPEERBUS_SOURCE=${SOURCE_DIR}")
  configure_consumer(of_exported of_subfolder_user "-Dstranger_DIR=${WORK_DIR}/of_subfolder"
                     "-Dpeerbus_DIR=${WORK_DIR}/of_subfolder/peerbus")
  run("${CMAKE_COMMAND}" --build "${WORK_DIR}/of_subfolder")
  run("${CMAKE_COMMAND}" --install "${WORK_DIR}/of_subfolder" --prefix "${WORK_DIR}/with_peerbus")
  configure_consumer(of_exported of_both "-DCMAKE_PREFIX_PATH=${WORK_DIR}/with_peerbus")
elseif(WAY STREQUAL "c")
  run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --component c --prefix "${WORK_DIR}/prefix")
  build_and_run_consumer(c "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix")
  configure_consumer(c of_build_folder "-Dpeerbus_c_DIR=${BUILD_DIR}/examples/embed/c")
  if(PKG_CONFIG)
    file(GLOB_RECURSE file "${WORK_DIR}/prefix/peerbus_c.pc")
    execute_process(COMMAND "${PKG_CONFIG}" --cflags --libs "${file}" OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(flags UNIX_COMMAND "${flags}")
    set(program "${WORK_DIR}/by_pkg_config")
    run(cc -std=c11 "${SOURCE_DIR}/examples/embed/c/dispatch_combine.c" ${flags} "-Wl,-rpath,${WORK_DIR}/prefix/lib" -o "${program}")
    run("${program}")
  endif()
elseif(WAY STREQUAL "add_subdirectory")
  build_and_run_consumer("${WAY}" "-DPEERBUS_SOURCE=${SOURCE_DIR}")
  # Programs that have peerbus in them do not install it.
  run("${CMAKE_COMMAND}" --install "${WORK_DIR}/build" --prefix "${WORK_DIR}/prefix")
  file(GLOB_RECURSE installed "${WORK_DIR}/prefix/*peerbus*")
  if(installed)
    message(FATAL_ERROR "peerbus is installed with the project that has it as a subfolder; expected so with PEERBUS_INSTALL alone")
  endif()
elseif(WAY STREQUAL "include_path")
  set(sources "${consumers}/consumer/main.cpp" "${consumers}/consumer/other.cpp")
  # Headers that are found this way are the user's own to a compiler: no warning of theirs is silenced.
  set(objects "")
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    list(APPEND objects "${WORK_DIR}/${name}.o")
    run("${COMPILER}" -std=c++20 -O2 -Wall -Wextra -Werror -I "${SOURCE_DIR}/include" -c "${source}"
        -o "${WORK_DIR}/${name}.o")
  endforeach()
  run("${COMPILER}" ${objects} -pthread -o "${WORK_DIR}/consumer")
  run("${WORK_DIR}/consumer")
  require_optimised("${WORK_DIR}/main.o" dispatch_and_combine)
  run("${COMPILER}" -std=c++2b -fsyntax-only -I "${SOURCE_DIR}/include" ${sources})
elseif(WAY STREQUAL "deb")
  run("${CPACK}" --config "${BUILD_DIR}/CPackConfig.cmake" -B "${WORK_DIR}")
  set(package "${WORK_DIR}/peerbus-dev_${VERSION}_all.deb")
  run(dpkg-deb --extract "${package}" "${WORK_DIR}/unpacked")
  set(prefix "${WORK_DIR}/unpacked/usr")
  if(NOT EXISTS "${prefix}/share/doc/peerbus-dev/copyright")
    message(FATAL_ERROR "${package} has no /usr/share/doc/peerbus-dev/copyright")
  endif()
  ask_pkg_config(flags "${prefix}" peerbus)
  compile_and_run_consumer(${flags})
  set(ENV{PKG_CONFIG_PATH} "${prefix}/share/pkgconfig")
  execute_process(COMMAND "${PKG_CONFIG}" --variable=compiled_sources peerbus OUTPUT_VARIABLE folder
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  run("${COMPILER}" -std=c++20 -fsyntax-only -DPEERBUS_COMPILED ${flags} "${folder}/kernels.cpp")
elseif(WAY STREQUAL "single_header")
  file(MAKE_DIRECTORY "${WORK_DIR}/include/peerbus")
  set(script "${SOURCE_DIR}/cmake/single_header.py")
  run("${PYTHON}" "${script}" --output "${WORK_DIR}/include/peerbus/peerbus.hpp")
  compile_and_run_consumer(-I "${WORK_DIR}/include" -pthread)
  # With what needs no library, in one header, as another compiler reads it.
  run("${PYTHON}" "${script}" peerbus/peerbus.hpp peerbus/bootstrap/environment.hpp
      peerbus/transport/any_transport.hpp peerbus/compat/deep_ep.hpp peerbus/compat/cann.hpp
      --output "${WORK_DIR}/more.hpp")
  file(WRITE "${WORK_DIR}/more.cpp" "#include \"more.hpp\"\n#include \"more.hpp\"\n")
  run("${CLANG}" -std=c++20 -fsyntax-only -Wall -Wextra -Werror "${WORK_DIR}/more.cpp")
  # On another processor other conditions hold.
  if(OTHER_PROCESSOR)
    run("${PYTHON}" "${script}" peerbus/kernel/kernel_set.hpp --output "${WORK_DIR}/more.hpp")
    run("${OTHER_PROCESSOR}" -std=c++20 -fsyntax-only -Wall -Wextra -Werror "${WORK_DIR}/more.cpp")
  endif()
elseif(WAY STREQUAL "recipes")
  file(READ "${SOURCE_DIR}/cmake/vcpkg/peerbus/vcpkg.json" port)
  string(JSON version GET "${port}" version)
  if(NOT version STREQUAL VERSION)
    message(FATAL_ERROR "cmake/vcpkg/peerbus/vcpkg.json has version ${version}; expected ${VERSION}")
  endif()
  set(recipe "${SOURCE_DIR}/cmake/conan/conanfile.py")
  run("${PYTHON}" -c "import sys; compile(open(sys.argv[1]).read(), sys.argv[1], 'exec')" "${recipe}")
  # Installs the files that the Conan recipe exports, with the options of the port.
  file(READ "${recipe}" text)
  string(REGEX MATCH "for pattern in [(]([^)]*)[)]" found "${text}")
  string(REGEX REPLACE "/[*]|[\", ]+" ";" exported "${CMAKE_MATCH_1}")
  list(REMOVE_ITEM exported "")
  foreach(file IN LISTS exported)
    file(COPY "${SOURCE_DIR}/${file}" DESTINATION "${WORK_DIR}/source")
  endforeach()
  file(READ "${SOURCE_DIR}/cmake/vcpkg/peerbus/portfile.cmake" text)
  string(REGEX MATCHALL "-DPEERBUS_[A-Z_]+=[A-Za-z/]+" options "${text}")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${WORK_DIR}/source" -B "${WORK_DIR}/build" -G "${GENERATOR}"
            "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}" ${options}
    OUTPUT_VARIABLE output ERROR_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(output MATCHES "not used by the project")
    message(FATAL_ERROR "the options '${options}' of the port have no meaning:\n${output}")
  endif()
  run("${CMAKE_COMMAND}" --install "${WORK_DIR}/build" --prefix "${WORK_DIR}/prefix")
  if(NOT EXISTS "${WORK_DIR}/prefix/share/peerbus/peerbus-config.cmake")
    message(FATAL_ERROR "the options '${options}' of the port put no peerbus-config.cmake into share/peerbus")
  endif()
else()
  message(FATAL_ERROR "WAY is '${WAY}'; expected find_package, add_subdirectory, include_path, compiled, export, fabric, mpi, pmix, tcp, topology, verbs, c, deb, single_header or recipes")
endif()
