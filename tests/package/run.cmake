# SPDX-License-Identifier: MIT
# Uses peerbus as a stranger would, WAY = find_package, add_subdirectory, include_path, compiled (with
# that target), mpi, pmix, tcp, topology or verbs (the first two, with that part): builds the consumer from scratch in WORK_DIR and runs it.
# CMakeLists.txt says which variables it takes.

set(consumers "${SOURCE_DIR}/tests/package")
file(REMOVE_RECURSE "${WORK_DIR}")
file(MAKE_DIRECTORY "${WORK_DIR}")
# The caller's flags (a sanitizer's, say) are not the consumer's.
foreach(name IN ITEMS CXXFLAGS CPPFLAGS LDFLAGS CMAKE_PREFIX_PATH peerbus_DIR)
  unset(ENV{${name}})
endforeach()

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
endfunction()

function(build_and_run_consumer folder)
  run("${CMAKE_COMMAND}" -S "${consumers}/${folder}" -B "${WORK_DIR}/build" -G "${GENERATOR}"
      "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}" ${ARGN})
  run("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
  run("${WORK_DIR}/build/consumer")
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
elseif(WAY MATCHES "^(mpi|pmix|tcp|topology|verbs)$")
  run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
  build_and_run_consumer(part "-DPART=${WAY}" "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix")
  if(NOT WAY MATCHES "^(mpi|pmix)$") # Which differ from tcp by one more library.
    build_and_run_consumer(part "-DPART=${WAY}" "-DPEERBUS_SOURCE=${SOURCE_DIR}")
  endif()
elseif(WAY STREQUAL "compiled")
  run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
  build_and_run_consumer(compiled "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix")
elseif(WAY STREQUAL "add_subdirectory")
  build_and_run_consumer("${WAY}" "-DPEERBUS_SOURCE=${SOURCE_DIR}")
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
else()
  message(FATAL_ERROR "WAY is '${WAY}'; expected find_package, add_subdirectory, include_path, compiled, mpi, pmix, tcp, topology or verbs")
endif()
