# SPDX-License-Identifier: MIT
#
# Checks a page that `ep_bench --report` wrote: that it is one file, that its JSON has the results of
# every configuration, and, if CHROMIUM is the path of a browser, that it draws them.
#   cmake -DPAGE=FILE [-DCHROMIUM=PROGRAM] -P check.cmake

file(READ "${PAGE}" page)
if(page MATCHES "<script[^>]* src=|<link ")
  message(FATAL_ERROR "${PAGE} needs other files: ${CMAKE_MATCH_0}")
endif()

set(start "<script id=\"data\" type=\"application/json\">")
string(FIND "${page}" "${start}" from)
if(from EQUAL -1)
  message(FATAL_ERROR "${PAGE} has no element with results")
endif()
string(LENGTH "${start}" length)
math(EXPR from "${from} + ${length}")
string(SUBSTRING "${page}" ${from} -1 data)
string(FIND "${data}" "</script>" to)
string(SUBSTRING "${data}" 0 ${to} data)
string(JSON results LENGTH "${data}" results)
if(results EQUAL 0)
  message(FATAL_ERROR "${PAGE} has no results")
endif()
math(EXPR last "${results} - 1")
foreach(index RANGE ${last})
  string(JSON passed GET "${data}" results ${index} check passed)
  string(JSON median GET "${data}" results ${index} dispatch_us p50)
  if(NOT passed OR NOT median GREATER 0)
    message(FATAL_ERROR "result ${index} of ${PAGE}: check ${passed}, median ${median}")
  endif()
endforeach()
message(STATUS "${PAGE} has ${results} results")

if(NOT CHROMIUM)
  message(STATUS "No chromium was found: that the page draws them is not checked")
  return()
endif()
execute_process(
  COMMAND "${CHROMIUM}" --headless --no-sandbox --disable-gpu "--user-data-dir=${PAGE}.chromium"
          --dump-dom "file://${PAGE}"
  OUTPUT_VARIABLE drawn
  ERROR_VARIABLE complaints
  RESULT_VARIABLE status
  TIMEOUT 60)
file(REMOVE_RECURSE "${PAGE}.chromium")
string(FIND "${drawn}" "</main>" to)
if(NOT status EQUAL 0 OR to EQUAL -1)
  message(FATAL_ERROR "${CHROMIUM} ended with ${status}: ${complaints}")
endif()
string(SUBSTRING "${drawn}" 0 ${to} drawn)
string(FIND "${drawn}" "processor" machine)
string(FIND "${drawn}" "<svg " picture)
if(machine EQUAL -1 OR machine GREATER picture)
  message(FATAL_ERROR "The page does not begin with the machine: ${drawn}")
endif()
# Dispatch and combine over tokens and over ranks; each result is a dot in two of them, and so is its
# limit.
string(REGEX MATCHALL "<svg " pictures "${drawn}")
string(REGEX MATCHALL "<circle " dots "${drawn}")
list(LENGTH pictures pictures)
list(LENGTH dots dots)
math(EXPR least "4 * ${results}")
if(NOT pictures EQUAL 4 OR dots LESS least)
  message(FATAL_ERROR "The browser drew ${pictures} pictures with ${dots} dots, expected 4 with "
                      "${least} at least: ${drawn}")
endif()
message(STATUS "The browser drew ${pictures} pictures with ${dots} dots")
