# SPDX-License-Identifier: MIT
# The target site, which makes <build>/site/index.html by Doxygen: the pages of the project (README.md, docs/ and
# others), and the reference from the docstrings of public headers. The tests docs.api and docs.site check it.

# Without its components: graphs by Graphviz are not drawn.
find_package(Doxygen QUIET)
find_package(Python3 QUIET COMPONENTS Interpreter)
if(NOT TARGET Doxygen::doxygen OR NOT Python3_FOUND)
  message(STATUS "the site is left out; it needs Doxygen and python3 (Debian: doxygen, python3)")
  return()
endif()
if(PROJECT_SOURCE_DIR MATCHES "[#]")
  message(STATUS "the site is left out: Doxygen takes no '#' in the names of folders, and here is ${PROJECT_SOURCE_DIR}")
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
set(DOXYGEN_PREDEFINED PEERBUS_INLINE= PEERBUS_ERROR_PATH= PEERBUS_API=)

# The manner of the project puts arguments into sentences instead of lists. The test docs.api looks for what has
# no docstring.
set(DOXYGEN_WARN_NO_PARAMDOC NO)
set(DOXYGEN_WARN_IF_INCOMPLETE_DOC NO)
set(DOXYGEN_WARN_IF_UNDOCUMENTED NO)

set(DOXYGEN_QUIET YES)
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_CLASS_GRAPH NO)
set(DOXYGEN_BUILTIN_STL_SUPPORT YES)
set(DOXYGEN_SORT_MEMBER_DOCS NO)
set(DOXYGEN_HIDE_UNDOC_CLASSES YES) # Else classes link to lists of private ones, which they do not have.
set(DOXYGEN_FILE_PATTERNS *.hpp *.h *.md)
set(DOXYGEN_STRIP_FROM_PATH "${PROJECT_SOURCE_DIR}")
set(DOXYGEN_STRIP_FROM_INC_PATH "${PROJECT_SOURCE_DIR}/include")

# Pages are as GitHub shows them; page.py tells Doxygen where their links lead.
set(DOXYGEN_USE_MDFILE_AS_MAINPAGE "${PROJECT_SOURCE_DIR}/README.md")
set(DOXYGEN_FILTER_PATTERNS "*.md=python3 cmake/site/page.py")
# Not the whole project, as builds lie in it.
set(DOXYGEN_EXAMPLE_PATH "")
foreach(folder IN ITEMS benchmarks cmake examples include tests)
  list(APPEND DOXYGEN_EXAMPLE_PATH "${PROJECT_SOURCE_DIR}/${folder}")
endforeach()
file(GLOB DOXYGEN_HTML_EXTRA_FILES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/*.svg")
set(DOXYGEN_HTML_OUTPUT site)

# For narrow screens and dark ones. Without it the site has the look that Doxygen gives it.
find_file(PEERBUS_SITE_STYLE doxygen-awesome.css PATHS /usr/share/doxygen-awesome-css)
mark_as_advanced(PEERBUS_SITE_STYLE)
set(DOXYGEN_HTML_EXTRA_STYLESHEET "${PROJECT_SOURCE_DIR}/cmake/site/site.css")
if(PEERBUS_SITE_STYLE)
  list(PREPEND DOXYGEN_HTML_EXTRA_STYLESHEET "${PEERBUS_SITE_STYLE}")
else()
  message(STATUS "the site has no style for narrow and dark screens: doxygen-awesome.css was not found "
                 "(Debian: doxygen-awesome-css)")
endif()
file(GLOB pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/*.md")
doxygen_add_docs(
  site
  "${PROJECT_SOURCE_DIR}/include/peerbus"
  "${PROJECT_SOURCE_DIR}/examples/embed/c/include"
  "${PROJECT_SOURCE_DIR}/README.md"
  "${PROJECT_SOURCE_DIR}/CONTRIBUTING.md"
  "${PROJECT_SOURCE_DIR}/benchmarks/README.md"
  "${PROJECT_SOURCE_DIR}/examples/embed/README.md"
  ${pages}
  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
  COMMENT "Writing ${PROJECT_BINARY_DIR}/site/index.html")
add_custom_command(
  TARGET site POST_BUILD COMMAND "${Python3_EXECUTABLE}" -B "${PROJECT_SOURCE_DIR}/cmake/site/search.py"
                                 "${PROJECT_BINARY_DIR}/site")
