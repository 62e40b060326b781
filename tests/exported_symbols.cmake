# SPDX-License-Identifier: Apache-2.0
#
# The shared library exports what the public headers mark with HEADRACE_EXPORT: all of it, and nothing else.
#   cmake -D LIBRARY=libheadrace.so -D NM=nm -D HEADERS=include/headrace -P exported_symbols.cmake
cmake_minimum_required(VERSION 3.22)

execute_process(COMMAND ${NM} --dynamic --defined-only --demangle ${LIBRARY} OUTPUT_VARIABLE symbols
                RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${NM} failed on ${LIBRARY}: ${status}")
endif()

# Names in namespace headrace that the headers mark: classes, and functions by the name before their parameters.
file(GLOB headers ${HEADERS}/*.h)
list(FILTER headers EXCLUDE REGEX "/export\\.h$")
set(marked "")
set(marked_c "")
foreach(header IN LISTS headers)
  file(READ ${header} text)
  # Those of the C interface, whose names have no namespace.
  string(REGEX MATCHALL "\nHR_API [^(;{]*\\(" functions "${text}")
  foreach(declaration IN LISTS functions)
    string(REGEX MATCH "([a-z0-9_]+)\\($" name "${declaration}")
    list(APPEND marked_c ${CMAKE_MATCH_1})
  endforeach()
  string(REGEX MATCHALL "(class|struct) HEADRACE_EXPORT [A-Za-z0-9_]+" classes "${text}")
  string(REGEX MATCHALL "HEADRACE_EXPORT[^(;{]*\\(" functions "${text}")
  foreach(declaration IN LISTS classes functions)
    string(REGEX MATCH "([A-Za-z0-9_]+)\\(?$" name "${declaration}")
    list(APPEND marked ${CMAKE_MATCH_1})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES marked)

set(exported "")
set(strangers "")
string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^[0-9a-f]* *[A-Za-z] " "" symbol "${line}")
  string(REGEX MATCH "^(typeinfo for |typeinfo name for |vtable for )?headrace::([A-Za-z0-9_]+)" found "${symbol}")
  if(found AND CMAKE_MATCH_2 IN_LIST marked)
    list(APPEND exported ${CMAKE_MATCH_2})
  elseif(symbol IN_LIST marked_c)
    list(APPEND exported ${symbol})
  else()
    string(APPEND strangers "\n  ${symbol}")
  endif()
endforeach()
if(strangers)
  message(FATAL_ERROR "${LIBRARY} exports what no public header marks:${strangers}")
endif()

list(APPEND marked ${marked_c})
list(REMOVE_ITEM marked ${exported})
if(marked)
  message(FATAL_ERROR "${LIBRARY} does not export what the public headers mark: ${marked}")
endif()

# An exception thrown inside is caught outside by its type.
file(READ ${HEADERS}/error.h text)
string(REGEX MATCHALL "class HEADRACE_EXPORT [A-Za-z]+" errors "${text}")
foreach(declaration IN LISTS errors)
  string(REPLACE "class HEADRACE_EXPORT " "" error "${declaration}")
  if(NOT symbols MATCHES "typeinfo for headrace::${error}\n")
    message(FATAL_ERROR "${LIBRARY} does not export the type of headrace::${error}")
  endif()
endforeach()
