# SPDX-License-Identifier: Apache-2.0

# run(STATUS COMMAND...): fails unless the command ends with that status.
function(run expected_status)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL expected_status)
    message(FATAL_ERROR "status ${status} instead of ${expected_status}: ${ARGN}")
  endif()
endfunction()
