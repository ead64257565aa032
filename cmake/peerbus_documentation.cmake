# SPDX-License-Identifier: MIT
# The target api_reference, which makes <build>/api_reference/index.html by Doxygen from the docstrings of
# public headers and the pages in docs/, and the configuration that the test docs.api checks them with.

# Without its components: graphs by Graphviz are not drawn.
find_package(Doxygen QUIET)
if(NOT TARGET Doxygen::doxygen)
  message(STATUS "api_reference is left out: Doxygen was not found (Debian: doxygen)")
  return()
endif()
if(PROJECT_SOURCE_DIR MATCHES "[#]")
  message(STATUS "api_reference is left out: Doxygen takes no '#' in the names of folders, and here is ${PROJECT_SOURCE_DIR}")
  return()
endif()

# The first sentence of a docstring is its summary. A comment at the first of several declarations
# between `///@{` and `///@}` serves all of them.
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_DISTRIBUTE_GROUP_DOC YES)

# What lies in detail is nobody else's business.
set(DOXYGEN_EXCLUDE_PATTERNS */detail/*)
set(DOXYGEN_EXCLUDE_SYMBOLS detail *::detail detail::* *::detail::*)

# The macros at declarations say where bodies lie, which a reader does not need.
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_EXPAND_ONLY_PREDEF YES)
set(DOXYGEN_PREDEFINED PEERBUS_INLINE= PEERBUS_ERROR_PATH=)

# The manner of the project puts arguments into sentences instead of lists.
set(DOXYGEN_WARN_NO_PARAMDOC NO)
set(DOXYGEN_WARN_IF_INCOMPLETE_DOC NO)

set(DOXYGEN_QUIET YES)
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_CLASS_GRAPH NO)
set(DOXYGEN_BUILTIN_STL_SUPPORT YES)
set(DOXYGEN_SORT_MEMBER_DOCS NO)
set(DOXYGEN_STRIP_FROM_INC_PATH "${PROJECT_SOURCE_DIR}/include")
set(DOXYGEN_USE_MDFILE_AS_MAINPAGE "${PROJECT_SOURCE_DIR}/docs/guide.md")
set(DOXYGEN_HTML_OUTPUT api_reference)
set(DOXYGEN_GENERATE_TREEVIEW YES)
file(GLOB pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/*.md")
doxygen_add_docs(
  api_reference
  "${PROJECT_SOURCE_DIR}/include/peerbus"
  ${pages}
  "${PROJECT_SOURCE_DIR}/README.md"
  "${PROJECT_SOURCE_DIR}/CONTRIBUTING.md"
  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
  COMMENT "Writing ${PROJECT_BINARY_DIR}/api_reference/index.html")
