# SPDX-License-Identifier: MIT
# cmake -DCOMPILER=g++ -DINCLUDE_DIR=include -DWORK_DIR=<folder> -P parse_time.cmake
# Prints how long the compiler's front end takes for the entry headers. Fails only where one does
# not compile: how fast a machine is proves nothing about the headers.

foreach(name IN ITEMS COMPILER INCLUDE_DIR WORK_DIR)
  if(NOT DEFINED ${name})
    message(FATAL_ERROR "-D${name}=... is missing")
  endif()
endforeach()
file(MAKE_DIRECTORY "${WORK_DIR}")

function(report name text)
  file(WRITE "${WORK_DIR}/parse.cpp" "${text}\n")
  set(times "")
  foreach(round RANGE 1 5)
    string(TIMESTAMP before "%s%f")
    execute_process(COMMAND "${COMPILER}" -std=c++20 -fsyntax-only -I "${INCLUDE_DIR}" "${WORK_DIR}/parse.cpp"
                    RESULT_VARIABLE result ERROR_VARIABLE errors)
    string(TIMESTAMP after "%s%f")
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "${name} does not compile:\n${errors}")
    endif()
    math(EXPR milliseconds "(${after} - ${before}) / 1000")
    list(APPEND times "${milliseconds}")
  endforeach()
  list(SORT times COMPARE NATURAL)
  list(GET times 0 least)
  list(GET times 2 median)
  message(STATUS "parse time of ${name}: median ${median} ms, least ${least} ms of 5")
endfunction()

report("an empty file" "")
report("peerbus/core.hpp" "#include <peerbus/core.hpp>")
report("peerbus/peerbus.hpp" "#include <peerbus/peerbus.hpp>")
