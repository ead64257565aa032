# SPDX-License-Identifier: MIT
# cmake -DDOXYGEN= -DCONFIGURATION= -DROOT= -DHEADERS=<folder> -DWORK_DIR= -P check.cmake: see CMakeLists.txt.
# With -DSAMPLE=<file> only that file is read.

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${WORK_DIR}")
set(sample_only "")
if(SAMPLE)
  set(sample_only "INPUT = \"${SAMPLE}\"\nGENERATE_HTML = NO\n")
endif()
file(WRITE "${WORK_DIR}/Doxyfile" "@INCLUDE = \"${CONFIGURATION}\"
OUTPUT_DIRECTORY = \"${WORK_DIR}\"
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
WARN_IF_UNDOCUMENTED = YES
WARN_LOGFILE = \"${WORK_DIR}/warnings.txt\"
${sample_only}")
execute_process(COMMAND "${DOXYGEN}" "${WORK_DIR}/Doxyfile" WORKING_DIRECTORY "${ROOT}" COMMAND_ERROR_IS_FATAL ANY)
file(STRINGS "${WORK_DIR}/warnings.txt" complaints REGEX "warning:")
list(FILTER complaints EXCLUDE REGEX "Member operator[^a-zA-Z([ ]|=default|=delete| override |warning: Compound ")

# Doxygen says nothing of enumerators, concepts and namespaces without a docstring, nor of functions,
# constants and some classes in such a namespace. The XML shows the former and the classes.
# empty(<indent> <variable>): the pattern of two descriptions that are empty.
function(empty indent variable)
  set(pattern "")
  foreach(tag IN ITEMS briefdescription detaileddescription)
    string(APPEND pattern "\n${indent}<${tag}>\n${indent}</${tag}>")
  endforeach()
  set("${variable}" "${pattern}" PARENT_SCOPE)
endfunction()
empty("    " empty_compound)
empty("          " empty_enumerator)
set(location "<location file=\"([^\"]*)\" line=\"([0-9]+)\"")
file(GLOB pages "${WORK_DIR}/xml/*.xml")
set(entity "<compounddef [^>]*kind=\"(namespace|concept|class|struct|union)\"[^>]*>\n *<compoundname>([^\n]*)</compoundname>")
set(entities 0)
foreach(page IN LISTS pages)
  file(READ "${page}" text)
  if(NOT text MATCHES "<compounddef [^>]*prot=\"private\"" AND text MATCHES "${entity}")
    math(EXPR entities "${entities} + 1")
    set(kind "${CMAKE_MATCH_1}")
    set(name "${CMAKE_MATCH_2}")
    if(NOT name MATCHES "(^|::)detail(::|$)" AND text MATCHES "${empty_compound}.*\n    ${location}")
      list(APPEND complaints "${CMAKE_MATCH_1}:${CMAKE_MATCH_2}: warning: The ${kind} ${name} is not documented.")
    endif()
  endif()
  set(enumerator "<enumvalue [^>]*prot=\"p[ur][bo][^>]*>\n *<name>([^<]*)</name>(\n *<initializer>[^\n]*)?")
  while(text MATCHES "${enumerator}${empty_enumerator}(.*)$")
    set(name "${CMAKE_MATCH_1}")
    set(text "${CMAKE_MATCH_3}")
    string(REGEX MATCH "${location}" found "${text}")
    list(APPEND complaints "${CMAKE_MATCH_1}:${CMAKE_MATCH_2}: warning: Enumerator ${name} is not documented.")
  endwhile()
endforeach()

# The tag of a sentence about errors or costs begins a line, where readers look for it. Reflowing glues
# it to the sentence before; Doxygen does not mind.
set(glued "^ *///.*[.!?][)\"`]* +(Throws( also)?(, [a-z][a-z, ]*)?|Cost):( |$)")
file(GLOB_RECURSE headers "${HEADERS}/*.hpp" "${HEADERS}/*.ipp")
if(SAMPLE)
  set(headers "${SAMPLE}")
endif()
# Sets `into` to "number|text" for each line of a file that matches; the text is that of the first group.
function(find_lines file pattern into)
  file(READ "${file}" text)
  string(REGEX REPLACE "[][;\\]" "_" text "${text}")
  string(REPLACE "\n" ";" lines "${text}")
  set(found "")
  set(number 0)
  foreach(line IN LISTS lines)
    math(EXPR number "${number} + 1")
    if(line MATCHES "${pattern}")
      list(APPEND found "${number}|${CMAKE_MATCH_1}")
    endif()
  endforeach()
  set("${into}" "${found}" PARENT_SCOPE)
endfunction()
foreach(header IN LISTS headers)
  find_lines("${header}" "${glued}" found)
  foreach(line IN LISTS found)
    string(REGEX REPLACE "^([0-9]+)[|](.*)$" "${header}:\\1: warning: \\2 does not begin the line." line "${line}")
    list(APPEND complaints "${line}")
  endforeach()
endforeach()

list(FILTER complaints EXCLUDE REGEX "[.]h:[0-9]+: warning: Enumerator ") # Their names have to say it.
list(REMOVE_DUPLICATES complaints)
list(SORT complaints COMPARE NATURAL)
if(SAMPLE)
  set(reported "")
  foreach(complaint IN LISTS complaints)
    string(REGEX REPLACE "^.*:([0-9]+): warning:.*$" "\\1" line "${complaint}")
    list(APPEND reported "${line}")
  endforeach()
  find_lines("${SAMPLE}" "(// reported)$" expected)
  list(TRANSFORM expected REPLACE "[|].*$" "")
  list(REMOVE_DUPLICATES reported)
  list(SORT reported COMPARE NATURAL)
  if(NOT reported STREQUAL expected)
    message(FATAL_ERROR "${SAMPLE}: lines ${reported} were reported, expected ${expected}")
  endif()
  return()
endif()
if(entities LESS 100)
  message(FATAL_ERROR "Doxygen found only ${entities} classes and concepts in ${HEADERS}, expected those of all headers")
endif()
if(complaints)
  list(JOIN complaints "\n" complaints)
  message(NOTICE "${complaints}")
  message(FATAL_ERROR "Each public entity needs a docstring, whose tags begin lines (CONTRIBUTING.md, Comments), "
                      "and each link of a page leads somewhere")
endif()
