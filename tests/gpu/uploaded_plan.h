// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <utility>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "headrace/cuda.h"

namespace headrace::test {

/// A plan whose tables are on the GPU, in memory of its own.
class UploadedPlan {
 public:
  explicit UploadedPlan(Plan made) : plan_(std::move(made)) { upload(); }

  [[nodiscard]] Plan& get() noexcept { return plan_; }
  [[nodiscard]] const Plan& get() const noexcept { return plan_; }
  /// Again, after the plan was remade.
  void upload() {
    tables_ = device::cuda::DeviceBuffer(std::max<std::int64_t>(plan_.table_bytes(), 1));
    headrace::upload(plan_, {tables_.data(), static_cast<std::size_t>(tables_.size_bytes())}, Stream{});
    device::cuda::synchronize(Stream{});
  }

 private:
  Plan plan_;
  device::cuda::DeviceBuffer tables_;
};

}  // namespace headrace::test
