// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "gpu.h"
#include "headrace/cuda.h"
#include "headrace/error.h"
#include "on_device.h"
#include "support/attention_case.h"
#include "support/output_buffer.h"
#include "support/random.h"
#include "uploaded_plan.h"

namespace headrace::test {

/// A step as a GPU computes it, in bfloat16 throughout.
inline CaseSpec spec_on_gpu(const Geometry& geometry, const SelectionRule& rule, std::vector<RequestShape> requests,
                            std::uint64_t seed) {
  CaseSpec spec;
  spec.geometry = geometry;
  spec.rule = rule;
  spec.compute = DType::bfloat16;
  spec.out = DType::bfloat16;
  spec.format = CacheFormat::bfloat16;
  spec.requests = std::move(requests);
  spec.page_size = 16;
  spec.seed = seed;
  return spec;
}

/// A case's inputs in the GPU's memory.
class CaseOnDevice {
 public:
  explicit CaseOnDevice(const AttentionCase& problem)
      : host_(problem.inputs()),
        weights_(problem.weights()),
        q_(host_.q.as<bfloat16>()),
        kv_b_proj_(weights_.kv_b_proj.as<bfloat16>()),
        sink_(weights_.sink),
        cache_(host_.cache.num_pages * host_.cache.page_stride),
        requests_(host_.requests),
        selection_(host_.selection) {
    cache_.upload({host_.cache.data, static_cast<std::size_t>(cache_.size_bytes())});
  }

  [[nodiscard]] Inputs inputs() const {
    Inputs inputs = host_;
    inputs.q = q_.view();
    inputs.cache.data = cache_.data();
    inputs.requests = requests_.get();
    inputs.selection = selection_.get();
    return inputs;
  }
  [[nodiscard]] Weights weights() const { return {kv_b_proj_.view(), sink_.view()}; }

  /// Puts another case's data where this one's are. It must not need more memory, and must have the same strides.
  void replace(const AttentionCase& other) const {
    const Inputs inputs = other.inputs();
    q_.replace(inputs.q.as<bfloat16>());
    kv_b_proj_.replace(other.weights().kv_b_proj.as<bfloat16>());
    sink_.replace(other.weights().sink);
    requests_.replace(inputs.requests);
    selection_.replace(inputs.selection);
    cache_.upload({inputs.cache.data, static_cast<std::size_t>(inputs.cache.num_pages * inputs.cache.page_stride)});
  }

 private:
  Inputs host_;
  Weights weights_;
  OnDevice<const bfloat16> q_;
  OnDevice<const bfloat16> kv_b_proj_;
  OnDevice<const float> sink_;
  device::cuda::DeviceBuffer cache_;
  RequestsOnDevice requests_;
  SelectionOnDevice selection_;
};

/// The bytes a view reaches over, and a copy of them on the GPU that can be brought back.
template <class T>
class OutputOnDevice {
 public:
  explicit OutputOnDevice(const View<T>& host) : host_(host) {
    std::int64_t last = 0;
    for (int i = 0; i < host.rank(); ++i) {
      last += (host.dim(i) - 1) * host.stride(i);
    }
    size_ = host.size() == 0 ? 0 : last + 1;
    memory_ = device::cuda::DeviceArray<T>(std::span<const T>(host.data(), static_cast<std::size_t>(size_)));
  }
  [[nodiscard]] View<T> view() const {
    return host_.empty() ? View<T>() : View<T>(memory_.data(), host_.rank(), host_.shape(), host_.strides());
  }
  void bring_back() const {
    const std::vector<T> values = memory_.download();
    if (!values.empty()) {
      std::memcpy(static_cast<void*>(host_.data()), values.data(), values.size() * sizeof(T));
    }
  }

 private:
  View<T> host_;
  std::int64_t size_ = 0;
  device::cuda::DeviceArray<T> memory_;
};

class OutputsOnDevice {
 public:
  explicit OutputsOnDevice(const Outputs& host)
      : float32_(host.out.dtype() == DType::float32 ? host.out.as<float>() : View<float>()),
        bfloat16_(host.out.dtype() == DType::bfloat16 ? host.out.as<bfloat16>() : View<bfloat16>()),
        lse_(host.lse) {}
  [[nodiscard]] Outputs get() const {
    return {float32_.view().empty() ? AnyView(bfloat16_.view()) : AnyView(float32_.view()), lse_.view()};
  }
  void bring_back() const {
    float32_.bring_back();
    bfloat16_.bring_back();
    lse_.bring_back();
  }

 private:
  OutputOnDevice<float> float32_;
  OutputOnDevice<bfloat16> bfloat16_;
  OutputOnDevice<float> lse_;
};

inline constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// @param path  forced; absent: as the router decides
inline Plan plan_on_gpu(const AttentionCase& problem, const Batch& batch, std::optional<Path> path,
                        std::int64_t limit = kNoLimit) {
  Limits limits;
  limits.workspace_bytes = limit;
  limits.device.cuda = gpu();
  Hints hints;
  hints.force = path;
  return plan(problem.attention(), batch, limits, hints);
}

/// Limits from the least workspace upwards.
inline std::int64_t random_limit(Random& random, const AttentionCase& problem, Path path) {
  if (random.below(2) == 0) {
    return kNoLimit;
  }
  const auto suffices = [&](std::int64_t limit) {
    try {
      static_cast<void>(plan_on_gpu(problem, problem.batch(), path, limit));
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  const std::int64_t everything = plan_on_gpu(problem, problem.batch(), path, kNoLimit).workspace_bytes();
  if (!suffices(everything)) {
    // A batch of a few rows may take less than a path's minimum, which holds in any company.
    return kNoLimit;
  }
  std::int64_t least = everything;
  for (std::int64_t step = everything; step > 0; step /= 2) {
    least -= suffices(least - step) ? step : 0;
  }
  return least + random.below(everything - least + 1);
}

/// Runs a plan on a case, or on other inputs of its shapes, and waits.
inline OutputBuffer run_with(const AttentionCase& problem, const CaseOnDevice& on_device, const Plan& made,
                             const Inputs& inputs, const device::cuda::DeviceBuffer& workspace, Stream stream) {
  OutputBuffer result = problem.output_buffer();
  const OutputsOnDevice outputs(result.outputs());
  const UploadedPlan uploaded(made);
  attend(uploaded.get(), on_device.weights(), inputs, outputs.get(),
         {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
  device::cuda::synchronize(stream);
  outputs.bring_back();
  return result;
}

inline OutputBuffer run_on_gpu(const AttentionCase& problem, const Plan& made) {
  const CaseOnDevice on_device(problem);
  const device::cuda::DeviceBuffer workspace(std::max<std::int64_t>(made.workspace_bytes(), 1));
  workspace.fill(std::byte{0xff});
  const device::cuda::OwnedStream stream;
  return run_with(problem, on_device, made, on_device.inputs(), workspace, stream);
}

}  // namespace headrace::test
