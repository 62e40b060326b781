# SPDX-License-Identifier: Apache-2.0
#
# Installs the library into a folder of its own, builds examples/ against it with find_package(Headrace), and lets the
# example reproduce a recording.
set(work ${BUILD}/installed_example)
file(REMOVE_RECURSE ${work})
foreach(
  command
  "${CMAKE_COMMAND};--install;${BUILD};--prefix;${work}/prefix"
  "${CMAKE_COMMAND};-S;${SOURCE}/examples;-B;${work}/build;-G;${GENERATOR};-D;CMAKE_PREFIX_PATH=${work}/prefix;-D;CMAKE_CXX_COMPILER=${CXX}"
  "${CMAKE_COMMAND};--build;${work}/build"
  "${work}/build/attend;${SOURCE}/tests/data/recordings/glm5_next"
  "${work}/prefix/bin/headrace;--version")
  execute_process(COMMAND ${command} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed with status ${status}: ${command}")
  endif()
endforeach()
