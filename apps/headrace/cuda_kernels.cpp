// SPDX-License-Identifier: Apache-2.0
#include "cuda_kernels.h"

#include <fmt/core.h>

#include <algorithm>

#include "attention/mha/sm90.h"
#include "attention/paths/path.h"

namespace headrace::app {
namespace {

/// Kernels are asked about every pair of head dims up to here, in the steps that they take.
constexpr std::int64_t kLargestHeadDim = 512;
constexpr std::int64_t kStep = 64;

/// The geometries the MHA kernel is compiled for, with R 512 so that every cache format could hold them.
std::vector<Geometry> served_geometries() {
  std::vector<Geometry> served;
  for (std::int64_t nope = kStep; nope <= kLargestHeadDim; nope += kStep) {
    for (const std::int64_t rope : {std::int64_t{0}, kStep}) {
      for (std::int64_t v = kStep; v <= kLargestHeadDim; v += kStep) {
        const Geometry g{
            .num_heads = 1, .kv_lora_rank = 512, .qk_nope_head_dim = nope, .qk_rope_head_dim = rope, .v_head_dim = v};
        if (attention::mha::sm90::unmet_requirements(g).empty()) {
          served.push_back(g);
        }
      }
    }
  }
  return served;
}

bool serves(Path path, const Geometry& geometry) {
  const Attention attention{geometry, SelectionRule::none(), 1.0, DType::bfloat16, CacheFormat::bfloat16};
  return attention::cuda_path(path).unmet_requirements(attention, 0, 1, true).empty();
}

}  // namespace

std::optional<CudaKernels> cuda_kernels() {
  CudaKernels kernels;
  kernels.architecture = "sm_90a";
  const std::vector<Geometry> geometries = served_geometries();
  for (const Path path : kPaths) {
    if (std::any_of(geometries.begin(), geometries.end(), [&](const Geometry& g) { return serves(path, g); })) {
      kernels.paths.push_back(path);
    }
  }
  for (const Geometry& g : geometries) {
    kernels.head_dims.push_back(fmt::format("{}+{}/{}", g.qk_nope_head_dim, g.qk_rope_head_dim, g.v_head_dim));
  }
  return kernels;
}

}  // namespace headrace::app
