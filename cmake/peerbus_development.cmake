# SPDX-License-Identifier: MIT
# For peerbus's own tests, examples and benchmarks only; nothing here reaches a user.

set(PEERBUS_TEST_TIMEOUT_FACTOR 1 CACHE STRING "Multiplies every test's timeout (sanitizers are slow)")
option(PEERBUS_UNITY_PROGRAMS "Compile the sources of a program several at a time, where they are many" OFF)
option(PEERBUS_PROGRAMS_COMPILED
       "Link examples and benchmarks with peerbus::compiled, which takes less time to build" OFF)
option(PEERBUS_PROGRAMS_PRECOMPILED "Parse once what most examples and benchmarks include" OFF)
mark_as_advanced(PEERBUS_TEST_TIMEOUT_FACTOR PEERBUS_UNITY_PROGRAMS PEERBUS_PROGRAMS_COMPILED
                 PEERBUS_PROGRAMS_PRECOMPILED)

# By default g++ collects garbage from 128 MiB on. That is a sixth of its time where it does not optimise,
# and saves 7 % of its memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=4194304>")
endif()

# peerbus_warnings(<target>): the warnings that our own code is held to.
function(peerbus_warnings target)
  target_compile_options("${target}" PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
endfunction()

# peerbus_program(<target> <source>...): an executable of ours, with the precompiled header of the target that
# peerbus_precompiled_by names, if it does.
function(peerbus_program target)
  add_executable("${target}" ${ARGN})
  target_link_libraries("${target}" PRIVATE peerbus::peerbus)
  set_target_properties("${target}" PROPERTIES CXX_EXTENSIONS OFF)
  if(peerbus_precompiled_by)
    target_precompile_headers("${target}" REUSE_FROM "${peerbus_precompiled_by}")
  endif()
  peerbus_warnings("${target}")
endfunction()

# peerbus_add_ctest(<name> COMMAND <arg>... LABELS <label>... TIMEOUT <seconds> [SERIAL] [WAITS])
#
# Tests are counted as three processors each, and those that hardly compute, because they wait for deadlines, as one:
# `ctest -j` of three times the number of cores, and two, has room for two of these beside as many others as there are
# cores. Those that may take longest start first, so that no core is left alone with one of them at the end.
function(peerbus_add_ctest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL;WAITS" "TIMEOUT" "COMMAND;LABELS")
  math(EXPR timeout "${arg_TIMEOUT} * ${PEERBUS_TEST_TIMEOUT_FACTOR}")
  set(processors 3)
  if(arg_WAITS)
    set(processors 1)
  endif()
  add_test(NAME "${name}" COMMAND ${arg_COMMAND})
  set_tests_properties("${name}" PROPERTIES LABELS "${arg_LABELS}" TIMEOUT "${timeout}"
                                            RUN_SERIAL "${arg_SERIAL}" PROCESSORS "${processors}"
                                            COST "${arg_TIMEOUT}")
endfunction()
