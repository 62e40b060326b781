# SPDX-License-Identifier: Apache-2.0
#
# What the libFuzzer build does differently: every source is instrumented for coverage, and OpenMP is GCC's library with
# the pragmas left out. clang has its omp.h and its runtime in packages of their own; oneDNN brings GCC's runtime in any
# case, two of them in one process would fight over threads, and a target runs on one thread.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
  message(FATAL_ERROR "HEADRACE_FUZZ: expected clang, which has libFuzzer, got ${CMAKE_CXX_COMPILER_ID}")
endif()

target_compile_options(headrace_options INTERFACE -fsanitize=fuzzer-no-link -Wno-unknown-pragmas)

add_library(OpenMP::OpenMP_CXX INTERFACE IMPORTED)
target_include_directories(OpenMP::OpenMP_CXX INTERFACE ${CMAKE_CURRENT_LIST_DIR}/openmp)
target_link_libraries(OpenMP::OpenMP_CXX INTERFACE gomp)
