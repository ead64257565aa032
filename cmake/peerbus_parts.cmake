# SPDX-License-Identifier: MIT
# The parts of peerbus that are targets of their own: those that need a library, fabric (libfabric), mpi (MPI and OpenSSL), pmix
# (PMIx and OpenSSL), simulated (Boost.Context), tcp (OpenSSL), topology (hwloc) and verbs (libibverbs of rdma-core), and compiled, which
# has what is no template compiled once. For peerbus's own build and for its installed package alike, which makes the targets anew where it is
# used, so that installing needs no library and no compiler.

set(peerbus_parts fabric mpi pmix simulated tcp topology verbs)

# peerbus_find_part(<part> <libraries> <problem>): sets <libraries> to the targets of the libraries that the
# part needs, Boost::context, MPI::MPI_CXX, OpenSSL::SSL, peerbus::libfabric, peerbus::libhwloc, peerbus::libibverbs or peerbus::libpmix, if they are found, and <problem>
# to the empty string or to what is missing. CMake knows Boost, MPI and OpenSSL. The other libraries have no CMake
# package of their own in most distributions; they are looked for where find_library looks
# (CMAKE_PREFIX_PATH), and where pkg-config points to.
function(peerbus_find_part part library_variable problem_variable)
  set(others "")
  if(part STREQUAL "tcp")
    find_package(OpenSSL 3.0 QUIET GLOBAL)
    set("${library_variable}" OpenSSL::SSL PARENT_SCOPE)
    set("${problem_variable}" "" PARENT_SCOPE)
    if(NOT TARGET OpenSSL::SSL)
      set("${problem_variable}" "OpenSSL 3.0 or newer was not found (Debian: libssl-dev)" PARENT_SCOPE)
    endif()
    return()
  elseif(part STREQUAL "simulated")
    set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE) # Also for the packages that Boost's finds.
    find_package(Boost 1.74 QUIET COMPONENTS context)
    set("${library_variable}" Boost::context PARENT_SCOPE)
    set("${problem_variable}" "" PARENT_SCOPE)
    if(NOT TARGET Boost::context)
      set("${problem_variable}" "Boost.Context 1.74 or newer was not found (Debian: libboost-context-dev)" PARENT_SCOPE)
    endif()
    return()
  elseif(part STREQUAL "mpi")
    peerbus_find_part(tcp libraries problem)
    find_package(MPI 3.0 QUIET GLOBAL COMPONENTS CXX)
    if(NOT TARGET MPI::MPI_CXX)
      set(problem "MPI 3.0 or newer was not found (Debian: libopenmpi-dev openmpi-bin)")
    endif()
    set("${library_variable}" ${libraries} MPI::MPI_CXX PARENT_SCOPE)
    set("${problem_variable}" "${problem}" PARENT_SCOPE)
    return()
  elseif(part STREQUAL "pmix")
    peerbus_find_part(tcp others problem)
    if(problem)
      set("${problem_variable}" "${problem}" PARENT_SCOPE)
      return()
    endif()
    set(library pmix)
    set(name pmix)
    set(header pmix.h)
    set(sign_of_least "PMIx_Data_type_string")
    set(least "PMIx 3")
  elseif(part STREQUAL "fabric")
    set(library fabric)
    set(name libfabric)
    set(header rdma/fabric.h)
    set(sign_of_least "define FI_(MAJOR_VERSION [2-9]|MINOR_VERSION (1[4-9]|[2-9][0-9]))")
    set(least "libfabric 1.14")
  elseif(part STREQUAL "topology")
    set(library hwloc)
    set(name hwloc)
    set(header hwloc.h)
    set(sign_of_least "define HWLOC_API_VERSION 0x000[2-9a-f]")
    set(least "hwloc 2.0")
  elseif(part STREQUAL "verbs")
    set(library ibverbs)
    set(name libibverbs)
    set(header infiniband/verbs.h)
    set(sign_of_least "ibv_query_gid_table")
    set(least "rdma-core 33")
  else()
    message(FATAL_ERROR "peerbus has no part '${part}'; expected one of: ${peerbus_parts}")
  endif()
  string(TOUPPER "${library}" upper)
  set("${library_variable}" ${others} "peerbus::lib${library}" PARENT_SCOPE)
  set("${problem_variable}" "" PARENT_SCOPE)
  if(TARGET "peerbus::lib${library}")
    return()
  endif()

  # The machine's own pkg-config knows nothing of another machine's libraries.
  if(NOT CMAKE_CROSSCOMPILING)
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND)
      pkg_check_modules("PEERBUS_PC_${upper}" QUIET "${name}")
    endif()
  endif()
  set(folder "PEERBUS_${upper}_INCLUDE_DIR")
  set(file "PEERBUS_${upper}_LIBRARY")
  find_path("${folder}" "${header}" HINTS ${PEERBUS_PC_${upper}_INCLUDEDIR})
  find_library("${file}" "${library}" HINTS ${PEERBUS_PC_${upper}_LIBDIR})
  mark_as_advanced("${folder}" "${file}")
  if(NOT ${folder} OR NOT ${file})
    set("${problem_variable}" "${name} was not found (Debian: lib${library}-dev)" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS "${${folder}}/${header}" found REGEX "${sign_of_least}")
  if(NOT found)
    set("${problem_variable}" "${${folder}}/${header} is older than ${least}" PARENT_SCOPE)
    return()
  endif()
  add_library("peerbus::lib${library}" UNKNOWN IMPORTED GLOBAL)
  set_target_properties("peerbus::lib${library}" PROPERTIES IMPORTED_LOCATION "${${file}}"
                                                            INTERFACE_INCLUDE_DIRECTORIES "${${folder}}")
endfunction()

# What has peerbus as a subfolder finds these targets everywhere, as it does peerbus::peerbus; what finds it installed, in
# its own folder and below.
macro(peerbus_import target)
  set(scope GLOBAL)
  get_target_property(found_here peerbus::peerbus IMPORTED)
  if(found_here)
    set(scope "")
  endif()
  # Imported: a library that links it and is exported names it, and needs it in no export set.
  add_library("${target}" INTERFACE IMPORTED ${scope})
endmacro()

# peerbus_add_part(<part> <problem>): the target peerbus::<part>, if what it needs is found, and <problem> as
# peerbus_find_part sets it.
function(peerbus_add_part part problem_variable)
  peerbus_find_part("${part}" libraries problem)
  set("${problem_variable}" "${problem}" PARENT_SCOPE)
  if(problem OR TARGET "peerbus::${part}")
    return()
  endif()
  peerbus_import("peerbus::${part}")
  target_link_libraries("peerbus::${part}" INTERFACE peerbus::peerbus ${libraries})
endfunction()

# peerbus_add_compiled(): the target peerbus::compiled, which links a static library with the bodies that are no
# templates and the instances that most programs want. It is built with the flags of the project that
# uses it, and only if something links it.
function(peerbus_add_compiled)
  if(NOT TARGET peerbus_compiled)
    # Brackets in the names of folders are no pattern.
    string(REGEX REPLACE "([][*?])" "[\\1]" folder "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
    file(GLOB sources "${folder}/compiled/*.cpp")
    add_library(peerbus_compiled STATIC EXCLUDE_FROM_ALL ${sources})
    set_target_properties(peerbus_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
    # Says where bodies come from, in the library and in all that link it; types stay the same.
    target_compile_definitions(peerbus_compiled PUBLIC PEERBUS_COMPILED)
    target_link_libraries(peerbus_compiled PUBLIC peerbus::peerbus)
  endif()
  if(NOT TARGET peerbus::compiled)
    peerbus_import(peerbus::compiled)
    target_link_libraries(peerbus::compiled INTERFACE peerbus_compiled)
  endif()
endfunction()
