// SPDX-License-Identifier: Apache-2.0
#include "headrace/geometry.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "geometry/limits.h"
#include "headrace/error.h"

namespace headrace {
namespace {

void expect_in_range(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw Error(std::string(name), fmt::format("an integer in [{}, {}]", low, high), std::to_string(value));
  }
}

}  // namespace

void Geometry::validate() const {
  expect_in_range("num_heads", num_heads, 1, kMaxHeads);
  expect_in_range("kv_lora_rank", kv_lora_rank, 1, kMaxLatentDim);
  expect_in_range("qk_nope_head_dim", qk_nope_head_dim, 1, kMaxHeadDim);
  expect_in_range("qk_rope_head_dim", qk_rope_head_dim, 0, kMaxHeadDim);
  if (qk_rope_head_dim % 2 != 0) {
    throw Error("qk_rope_head_dim", "an even number", std::to_string(qk_rope_head_dim));
  }
  expect_in_range("v_head_dim", v_head_dim, 1, kMaxHeadDim);
}

}  // namespace headrace
