# SPDX-License-Identifier: Apache-2.0
#
# Copies the shared libraries that a program needs into the program's own folder, so that it runs on a machine which has
# the CUDA toolkit and a C library no older than this one's, and nothing else.
#   cmake -D PROGRAM=... [-D PROVIDED=REGEX] -P ship_libraries.cmake
#   PROVIDED  names of libraries that the other machine has as well
if(NOT PROVIDED)
  set(PROVIDED "^$")
endif()
get_filename_component(folder ${PROGRAM} DIRECTORY)
# What stays is the other machine's own: the C library, the toolkit and the driver.
file(GET_RUNTIME_DEPENDENCIES
     EXECUTABLES ${PROGRAM}
     RESOLVED_DEPENDENCIES_VAR libraries
     UNRESOLVED_DEPENDENCIES_VAR missing
     CONFLICTING_DEPENDENCIES_PREFIX shipped # there as well as where it came from
     PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread)\\.so" "^libcu" "${PROVIDED}")
if(missing)
  message(FATAL_ERROR "${PROGRAM}: expected libraries that can be found, got none for ${missing}")
endif()
foreach(library IN LISTS libraries)
  get_filename_component(name ${library} NAME)
  file(REAL_PATH ${library} file)
  file(COPY_FILE ${file} ${folder}/${name} ONLY_IF_DIFFERENT)
endforeach()
