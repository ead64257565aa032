# SPDX-License-Identifier: MIT
# cmake -DCOMPILER= -DINCLUDE_DIR= -DSOURCE= -DHEADERS= -DCASE= -P check.cmake: see CMakeLists.txt.
# Case `headers` precompiles HEADERS, the source's includes, for the other cases.

set(ENV{LC_ALL} C) # Plain quotes and English in the messages that cases match.
set(compile "${COMPILER}" -std=c++20 -I "${INCLUDE_DIR}")
if(CASE STREQUAL "headers")
  execute_process(COMMAND ${compile} -x c++-header "${HEADERS}" -o "${HEADERS}.gch" COMMAND_ERROR_IS_FATAL ANY)
  return()
endif()
execute_process(
  COMMAND ${compile} -fsyntax-only -include "${HEADERS}" "-DPEERBUS_CASE=${CASE}" "${SOURCE}"
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)

if(CASE EQUAL 0)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "the positive control does not compile:\n${output}")
  endif()
  return()
endif()

file(READ "${SOURCE}" text)
if(NOT text MATCHES "// case ${CASE}: expect \"([^\n]*)\"[ \t]*(\n|$)")
  message(FATAL_ERROR "${SOURCE} has no line '// case ${CASE}: expect \"regex\"'")
endif()
set(expected "${CMAKE_MATCH_1}")
if(result EQUAL 0)
  message(FATAL_ERROR "case ${CASE} compiles; expected an error that matches \"${expected}\"")
endif()
if(NOT output MATCHES "${expected}")
  message(FATAL_ERROR "case ${CASE} fails, but for another reason; expected \"${expected}\":\n${output}")
endif()
