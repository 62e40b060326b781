// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cuda/products.h"
#include "device/cuda/stream.h"
#include "headrace/geometry.h"
#include "headrace/view.h"

namespace headrace::attention::cuda {

/// The products with kv_b_proj on a GPU, in bfloat16 (project.h has the CPU's). Everything is on the device's memory;
/// kv_b_proj is [H * (nope + v), R]: of head h first its W_UK rows, then its W_UV rows. What does not lie at multiples
/// of 16 bytes is slow.
class Projections {
 public:
  /// Chooses the algorithms. @param library  outlives this. @throws Error where a dim is no multiple of 8
  Projections(const device::cuda::ProductLibrary& library, const Geometry& geometry);

  /// Loads every algorithm; waits.
  void warm_up(Stream stream) const;
  /// Bytes of workspace that each product takes at most; device::cuda::Product says where.
  [[nodiscard]] std::int64_t workspace_bytes() const noexcept;

  /// The MHA form: up[n, h, :] = kv_b_proj of head h times latent n.
  /// @param latent  [n, R]
  /// @param up      [n, H, nope + v], heads contiguous
  void up_project(View<const bfloat16> latent, View<const bfloat16> kv_b_proj, View<bfloat16> up,
                  std::span<std::byte> workspace, Stream stream) const;

  /// The MQA form's first product: query[n, h, :R] = q_nope[n, h, :] W_UK of head h. The rope query is not touched.
  /// @param q      [n, H, nope + rope]
  /// @param query  [n, H, at least R]
  void absorb_query(View<const bfloat16> q, View<const bfloat16> kv_b_proj, View<bfloat16> query,
                    std::span<std::byte> workspace, Stream stream) const;

  /// The MQA form's last product: out[n, h, :] = W_UV of head h times attended[n, h, :].
  /// @param attended  [n, H, R]
  /// @param out       [n, H, v] bfloat16 or float32
  void project_values(View<const bfloat16> attended, View<const bfloat16> kv_b_proj, AnyView out,
                      std::span<std::byte> workspace, Stream stream) const;

 private:
  Geometry geometry_;
  device::cuda::Product up_;
  device::cuda::Product absorb_;
  device::cuda::Product values_bfloat16_;
  device::cuda::Product values_float32_;
};

}  // namespace headrace::attention::cuda
