# SPDX-License-Identifier: Apache-2.0
#
# Installs both libraries into a folder of their own, builds examples/ against each with find_package(Headrace), and lets
# the example reproduce a recording and catch an error. The example in C is built once more by a project in C alone.
cmake_minimum_required(VERSION 3.22)

set(work ${BUILD}/installed_example)
file(REMOVE_RECURSE ${work})

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

run(0 ${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
run(0 ${work}/prefix/bin/headrace --version)
foreach(file LICENSE THIRD_PARTY_NOTICES.md)
  if(NOT EXISTS ${work}/prefix/share/doc/headrace/${file})
    message(FATAL_ERROR "${file} was not installed")
  endif()
endforeach()
foreach(library static shared)
  set(build ${work}/${library})
  run(0 ${CMAKE_COMMAND} -S ${SOURCE}/examples -B ${build} -G ${GENERATOR} -D CMAKE_PREFIX_PATH=${work}/prefix -D
      CMAKE_CXX_COMPILER=${CXX} -D HEADRACE_LIBRARY=${library})
  run(0 ${CMAKE_COMMAND} --build ${build})
  run(0 ${build}/attend ${SOURCE}/tests/data/recordings/glm5_next)
  run(2 ${build}/attend ${work}/no_such_folder)
  run(0 ${build}/attend_in_c)
  file(STRINGS ${build}/attend needed REGEX "^libheadrace\\.so\\.[0-9]+\\.[0-9]+$")
  if((library STREQUAL shared AND NOT needed) OR (library STREQUAL static AND needed))
    message(FATAL_ERROR "the example was not linked with the ${library} library")
  endif()
endforeach()

# A project in C alone.
run(0 ${CMAKE_COMMAND} -S ${SOURCE}/tests/c_project -B ${work}/c -G ${GENERATOR} -D CMAKE_PREFIX_PATH=${work}/prefix -D
    HEADRACE_SOURCE=${SOURCE})
run(0 ${CMAKE_COMMAND} --build ${work}/c)
run(0 ${work}/c/engine)
