# SPDX-License-Identifier: Apache-2.0
#
# tools/setup.sh refuses what it does not know, before it looks at the machine: with an empty PATH it could not.
cmake_minimum_required(VERSION 3.22)

find_program(bash bash REQUIRED)
function(expect_refusal)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env PATH= ${bash} ${SOURCE}/tools/setup.sh ${ARGN}
                  RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT status EQUAL 2 OR NOT out STREQUAL "" OR NOT err MATCHES "^setup: .*--lint, --fuzz.*--python")
    message(FATAL_ERROR "setup.sh ${ARGN}: status ${status}, ${out}${err}")
  endif()
endfunction()

expect_refusal(--lnit)
expect_refusal(lint)
expect_refusal(--lint --fuzz)
execute_process(COMMAND ${CMAKE_COMMAND} -E env PATH= ${bash} ${SOURCE}/tools/setup.sh --help RESULT_VARIABLE status
                OUTPUT_VARIABLE out)
if(NOT status EQUAL 0 OR NOT out MATCHES "setup.sh --lint")
  message(FATAL_ERROR "setup.sh --help: status ${status}, ${out}")
endif()
