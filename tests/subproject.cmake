# SPDX-License-Identifier: Apache-2.0
#
# Takes Headrace's sources into a project of its own, tests/subproject/, that refuses to look for oneDNN, CLI11, GoogleTest
# and RapidCheck, builds the library and an example in it, and lets that reproduce a recording. Its build folder is kept,
# so that only the first time takes minutes.
cmake_minimum_required(VERSION 3.22)

set(build ${BUILD}/subproject)

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

file(REMOVE ${build}/CMakeCache.txt)
# Optimised code would take longer to build than the example takes to run.
run(0 ${CMAKE_COMMAND} -S ${SOURCE}/tests/subproject -B ${build} -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${CXX} -D
    CMAKE_BUILD_TYPE=Debug -D CMAKE_CXX_FLAGS_DEBUG=-O0 -D HEADRACE_SOURCE=${SOURCE})
run(0 ${CMAKE_COMMAND} --build ${build} --parallel 2 --target consumer)
run(0 ${build}/consumer ${SOURCE}/tests/data/recordings/glm5_next)
run(2 ${build}/consumer ${build}/no_such_folder)
# Nothing of Headrace is installed with a project that only uses it.
run(0 ${CMAKE_COMMAND} --install ${build} --prefix ${build}/prefix)
if(EXISTS ${build}/prefix/include/headrace OR EXISTS ${build}/prefix/bin/headrace)
  message(FATAL_ERROR "the consumer's installation has Headrace's files")
endif()
