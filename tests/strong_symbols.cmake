# SPDX-License-Identifier: MIT
# cmake -DNM= -DOBJECT= -P strong_symbols.cmake: fails if the object defines a symbol that no other object of a
# program may define.

execute_process(COMMAND "${NM}" --extern-only --defined-only --demangle "${OBJECT}" OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
if(NOT symbols MATCHES " [VWu] ")
  message(FATAL_ERROR "${OBJECT} defines no inline function; expected those of all headers, got '${symbols}'")
endif()
string(REGEX MATCHALL "[0-9a-f]* [A-TX-Z] [^\n]*" strong "${symbols}")
if(strong)
  list(JOIN strong "\n" strong)
  message(FATAL_ERROR "definitions in headers that are not inline:\n${strong}")
endif()
