// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/cuda/stream.h"
#include "headrace/dtype.h"

namespace headrace::device::cuda {

/// Matrices of a product, one for each entry of a batch: element (g, i, j) lies batch * g + row * i + column * j
/// elements behind the first.
struct PlainMatrix {
  const void* data = nullptr;
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t column = 0;
};

/// c[g] = a[g] b[g] for matrices that lie anyhow, which cuBLASLt does not take: a [rows, inner] and b [inner, columns]
/// of bfloat16, c [rows, columns] of bfloat16 or float32. Sums are float32, over ascending k and rounded once, so that
/// the bits of a row depend on nothing else. It uses no tensor cores, and takes many times as long.
struct PlainProduct {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t inner = 0;
  std::int64_t batch = 0;
  PlainMatrix a;
  PlainMatrix b;
  PlainMatrix c;  ///< written to
  DType out = DType::bfloat16;
};

/// Queues the product; allocates nothing and can be captured in a graph. load_plain_product() has been called for the
/// device. @throws Error where CUDA reports an error, or for more matrices than a grid has rows
void run(const PlainProduct& product, Stream stream);

/// Loads the kernels onto the current device.
void load_plain_product();

}  // namespace headrace::device::cuda
