# SPDX-License-Identifier: Apache-2.0
#
# What HEADRACE_CUDA adds to the build: the language, the toolkit, CuTe's headers and nvcc's options.
#   HEADRACE_CUTLASS_DIR  a folder with cute/ and cutlass/; empty: the pinned package, fetched into build/deps

# sm_90a alone: wgmma and setmaxnreg exist there and nowhere else, so PTX for later GPUs would be of no use.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
if(HEADRACE_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
endif()
enable_language(CUDA)
find_package(CUDAToolkit 12.8 REQUIRED)

set(HEADRACE_CUTLASS_DIR "" CACHE PATH "Folder with the headers of CUTLASS and CuTe; empty: fetch the pinned ones")
set(HEADRACE_CUTLASS_INCLUDE ${HEADRACE_CUTLASS_DIR})
if(NOT HEADRACE_CUTLASS_INCLUDE)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/fetch_cutlass.sh ${PROJECT_SOURCE_DIR}/build/deps
                  OUTPUT_VARIABLE HEADRACE_CUTLASS_INCLUDE OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT EXISTS ${HEADRACE_CUTLASS_INCLUDE}/cute/tensor.hpp)
  message(FATAL_ERROR "HEADRACE_CUTLASS_DIR: expected a folder with cute/tensor.hpp, got ${HEADRACE_CUTLASS_INCLUDE}")
endif()

# CMake before 3.26 does not know nvcc's option for C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

# The host compiler's warnings come from headrace_options as well: nvcc forwards options that it does not know.
target_compile_options(headrace_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
