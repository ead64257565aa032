# SPDX-License-Identifier: MIT
# cmake -DCC= -DABIDIFF= -DHEADERS=folder -DEXPECTED=abi_0_1.abi -DWORK=folder -P abi.cmake: fails if the interface of the
# headers is no longer that of the dump, except for functions that were added. With -DABIDW=abidw in place of ABIDIFF
# it writes the dump, which a structure that has grown at its end needs.
#
# libpeerbus.so itself has no debug information, which abidiff reads: building it once more would take a minute. So the
# headers are compiled with a body for each function. That the library has these functions is what embed_c.symbols and
# its own sources check, which include the headers.

file(GLOB headers "${HEADERS}/peerbus_c/*.h")
set(code "#include <peerbus.h>\n")
foreach(header IN LISTS headers)
  file(READ "${header}" text)
  # CMake ends a list's element at a semicolon, and brackets hide those.
  string(REPLACE ";" "\n@" text "${text}")
  string(REGEX REPLACE "[][]" " " text "${text}")
  string(REGEX REPLACE "/\\*([^*]|\\*+[^*/])*\\*+/" " " text "${text}")
  string(REGEX REPLACE "#define[^\n]*" " " text "${text}")
  string(REGEX MATCHALL "PEERBUS_API [^@]*@" functions "${text}")
  foreach(function IN LISTS functions)
    string(REPLACE "\n@" " { __builtin_trap(); }\n" function "${function}")
    string(APPEND code "${function}")
  endforeach()
endforeach()
file(MAKE_DIRECTORY "${WORK}")
file(WRITE "${WORK}/interface.c" "${code}")
execute_process(COMMAND "${CC}" -std=c11 -g -O0 -fPIC -shared -Wl,-soname,libpeerbus.so "-I${HEADERS}" -o
                        "${WORK}/libpeerbus.so" "${WORK}/interface.c" COMMAND_ERROR_IS_FATAL ANY)

if(ABIDW)
  execute_process(COMMAND "${ABIDW}" --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --short-locs
                          --no-architecture --out-file "${EXPECTED}" "${WORK}/libpeerbus.so"
                  COMMAND_ERROR_IS_FATAL ANY)
  return()
endif()
execute_process(COMMAND "${ABIDIFF}" --no-architecture --no-added-syms --harmless "${EXPECTED}" "${WORK}/libpeerbus.so"
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "abidiff ends with ${result}: the interface differs from ${EXPECTED}. If a structure has only "
                      "grown at its end, write the dump anew: the top of abi.cmake says how.\n${output}")
endif()
