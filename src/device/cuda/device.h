// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "attention/project_cuda.h"
#include "device/cuda/probe.h"
#include "device/cuda/products.h"
#include "headrace/cuda.h"

namespace headrace {

struct CudaDevice::State {
  int ordinal = 0;
  device::cuda::Capability capability;
  std::string unmet;
  device::cuda::ProductLibrary products;

  /// The products of a geometry, which stay where they are. When first asked it chooses and loads them and every kernel
  /// that the geometry may take, and waits.
  const attention::cuda::Projections& prepare(const Geometry& geometry);

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>,
           attention::cuda::Projections>
      projections_;
};

namespace device::cuda {

/// The number of a GPU that the kernels can run on. @throws Error with the reason where they cannot
[[nodiscard]] int served_ordinal(const CudaDevice& device);

}  // namespace device::cuda

}  // namespace headrace
