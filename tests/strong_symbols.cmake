# SPDX-License-Identifier: MIT
# cmake -DNM= -DOBJECT= -P strong_symbols.cmake: fails if the object, whose source only includes our headers, defines
# a symbol that no other object of a program may define, or a table of virtual functions, with all that it reaches:
# g++ puts one into each object if a virtual function that is defined outside its class was not declared inline in it.

execute_process(COMMAND "${NM}" --extern-only --defined-only --demangle "${OBJECT}" OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
if(NOT symbols MATCHES " B all_headers_are_here\n")
  message(FATAL_ERROR "${OBJECT} does not define all_headers_are_here, got '${symbols}'")
endif()
string(REGEX MATCHALL "[0-9a-f]* [A-TX-Z] [^\n]*" strong "${symbols}")
list(FILTER strong EXCLUDE REGEX " all_headers_are_here$")
if(strong)
  list(JOIN strong "\n" strong)
  message(FATAL_ERROR "definitions in headers that are not inline:\n${strong}")
endif()
string(REGEX MATCHALL "vtable for peerbus::[^\n]*" tables "${symbols}")
if(tables)
  list(JOIN tables "\n" tables)
  message(FATAL_ERROR "tables of classes that have a virtual function whose body stands outside the class, and which is "
                      "not declared PEERBUS_INLINE in it:\n${tables}")
endif()
