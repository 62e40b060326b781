# SPDX-License-Identifier: Apache-2.0
#
# The example in C gives what it says, and docs/c-interface.md shows it as it is.
#   cmake -D PROGRAM=... -D EXAMPLE=attend_in_c.c -D PAGE=c-interface.md -P c_example.cmake
cmake_minimum_required(VERSION 3.22)

execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE output RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR NOT output MATCHES "\nlog-sum-exp of the last row: 6\\.2166\n$")
  message(FATAL_ERROR "${PROGRAM}: status ${status}, and this output:\n${output}")
endif()

file(READ ${EXAMPLE} example)
string(FIND "${example}" "#include" begin)
string(SUBSTRING "${example}" ${begin} -1 example)
file(READ ${PAGE} page)
string(FIND "${page}" "```c\n${example}```\n" at)
if(at EQUAL -1)
  message(FATAL_ERROR "${PAGE} does not show ${EXAMPLE} as it is, from its first #include on")
endif()
