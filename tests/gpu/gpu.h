// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "headrace/cuda.h"

namespace headrace::test {

/// The GPU that tests run on.
inline const std::shared_ptr<CudaDevice>& gpu() {
  static const auto device = std::make_shared<CudaDevice>(0);
  return device;
}

}  // namespace headrace::test
