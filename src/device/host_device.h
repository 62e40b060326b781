// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Before a function that kernels call and the host too.
#if defined(__CUDACC__)
#define HEADRACE_HOST_DEVICE __host__ __device__
#else
#define HEADRACE_HOST_DEVICE
#endif
