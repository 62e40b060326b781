// SPDX-License-Identifier: Apache-2.0
// What the sources call of OpenMP, for a compiler that has no omp.h of its own: see toolchain.cmake.
#pragma once

extern "C" {
int omp_get_max_threads();
int omp_get_num_procs();
int omp_get_thread_num();
void omp_set_num_threads(int threads);
}
