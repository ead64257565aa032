# SPDX-License-Identifier: MIT
# cmake -DNM= -DLIBRARY= -DEXPECTED=symbols.txt -P symbols.cmake: fails unless the library exports
# exactly the functions that the file names.

execute_process(COMMAND "${NM}" --dynamic --defined-only "${LIBRARY}" OUTPUT_VARIABLE output
                COMMAND_ERROR_IS_FATAL ANY)
# Some tools print the version of the interface behind each name, and all print it as a symbol.
string(REGEX MATCHALL "[^ \n]+\n" symbols "${output}")
string(REGEX REPLACE "(@@?[^;\n]*)?\n" "" symbols "${symbols}")
list(REMOVE_ITEM symbols PEERBUS_0.1)
list(SORT symbols)
file(STRINGS "${EXPECTED}" expected)
list(SORT expected)
set(missing ${expected})
list(REMOVE_ITEM missing ${symbols})
set(unknown ${symbols})
list(REMOVE_ITEM unknown ${expected})
if(NOT missing STREQUAL "" OR NOT unknown STREQUAL "")
  message(FATAL_ERROR "${LIBRARY}\nlacks: ${missing}\nexports without need: ${unknown}")
endif()
