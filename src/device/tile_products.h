// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace headrace::device {

/// Small matrix products on float32 tiles that fit the caches, for one thread: the inner loops of the CPU attention
/// kernels and the indexer. Vectorised with Highway, dispatched at run time. Row strides are in elements. The order in
/// which an element of c is summed depends on K alone, not on M, N or the row's place in the tile.

/// c[m, n] = sum over k of a[m, k] * b[n, k]   (a times b transposed; overwrites c)
/// or, with `Update::add`, c[m, n] += that sum.
enum class Update : std::uint8_t { overwrite, add };
void products_nt(std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda, const float* b,
                 std::int64_t ldb, float* c, std::int64_t ldc, Update update = Update::overwrite);

/// c[m, n] += sum over k of a[m, k] * b[k, n]
void products_nn_add(std::int64_t M, std::int64_t N, std::int64_t K, const float* a, std::int64_t lda, const float* b,
                     std::int64_t ldb, float* c, std::int64_t ldc);

/// The name of the instruction set the dispatch has chosen, e.g. "AVX3".
const char* tile_products_target();

}  // namespace headrace::device
