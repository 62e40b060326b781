// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "headrace/dtype.h"

namespace headrace::app {

/// oneDNN's own matrix product, n x n x n, on all threads as oneDNN likes to use them: the yardstick of `bench`.
class OneDnnProduct {
 public:
  OneDnnProduct(DType dtype, std::int64_t n, int threads);
  ~OneDnnProduct();
  OneDnnProduct(const OneDnnProduct&) = delete;
  OneDnnProduct& operator=(const OneDnnProduct&) = delete;

  /// Milliseconds of one product.
  double run_ms();
  [[nodiscard]] double flops() const noexcept;

 private:
  struct Memory;
  std::int64_t n_;
  int threads_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace headrace::app
