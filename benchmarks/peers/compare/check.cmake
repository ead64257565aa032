# SPDX-License-Identifier: MIT
#
# Checks the table of compare_peers: the medians of two rounds, and which keys its JSON has.
#   cmake -DPROGRAM=FILE -DFOLDER=FOLDER -P check.cmake

file(REMOVE_RECURSE "${FOLDER}")
file(WRITE "${FOLDER}/lines" "a put\tput\t/us\t/us\tanother library\n")
set(signs "") # The first round is quiet, the second one is not.
foreach(round_ours_theirs IN ITEMS 0/1/8 1/3/12)
  string(REPLACE "/" ";" round_ours_theirs "${round_ours_theirs}")
  list(GET round_ours_theirs 0 round)
  list(GET round_ours_theirs 1 ours)
  list(GET round_ours_theirs 2 theirs)
  file(WRITE "${FOLDER}/put.ours.${round}" "{\"us\": ${ours}, \"noise\": {\"signs\": \"${signs}\"}}")
  file(WRITE "${FOLDER}/put.theirs.${round}" "{\"us\": ${theirs}}")
  set(signs "other programs ran")
endforeach()
execute_process(COMMAND "${PROGRAM}" table "${FOLDER}" --json "${FOLDER}/table.json" RESULT_VARIABLE status
                OUTPUT_VARIABLE table)
if(NOT status EQUAL 0 OR NOT table MATCHES "a put +2\\.00 +10\\.00 +6\\.00 +4\\.00 \\.\\. 8\\.00 +2 .1 noisy., another library\nnoisy: ")
  message(FATAL_ERROR "status ${status}, the table:\n${table}")
endif()

file(READ "${FOLDER}/table.json" json)
string(JSON keys LENGTH "${json}" 0)
set(names "")
math(EXPR last "${keys} - 1")
foreach(index RANGE ${last})
  string(JSON name MEMBER "${json}" 0 ${index})
  list(APPEND names "${name}")
endforeach()
list(SORT names)
if(NOT names STREQUAL "noisy_rounds;ours;ratio;rounds;theirs;theirs_by;what")
  message(FATAL_ERROR "the keys of the table are ${names}")
endif()
