// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headrace/geometry.h"
#include "headrace/view.h"

namespace headrace::attention {

/// The MHA form's product: up[n, h, :] = kv_b_proj of head h times latent n, rounded once to the compute dtype.
/// @param latent     [n, R] compute dtype
/// @param kv_b_proj  [H * (nope + v), R] compute dtype
/// @param up         [n, H, nope + v] contiguous, in the compute dtype, or in float32 that holds the rounded values
void up_project(DType compute, ConstAnyView latent, ConstAnyView kv_b_proj, AnyView up, int threads);

/// The MQA form's first product: query[n, h, :R] = q_nope[n, h, :] W_UK of head h, and the
/// rope query behind it.
/// @param q      [n, H, nope + rope] compute dtype
/// @param query  [n, H, at least R + rope] float32 or bfloat16; values behind R + rope are not written
void absorb_query(const Geometry& geometry, ConstAnyView q, ConstAnyView kv_b_proj, AnyView query, int threads);

/// The MQA form's last product: out[n, h, :] = W_UV of head h times attended[n, h, :].
/// @param attended  [n, H, R] compute dtype
/// @param out       [n, H, v] compute dtype or float32
void project_values(const Geometry& geometry, ConstAnyView attended, ConstAnyView kv_b_proj, AnyView out, int threads);

}  // namespace headrace::attention
