// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include "attention/mha/sm90.h"

/// What the kernel's host side says of a geometry before anything is launched.
namespace headrace::attention::mha::sm90 {
namespace {

/// The copy engine brings K in blocks of so many columns.
constexpr std::int64_t kColumnBlock = 64;

}  // namespace

std::vector<std::string> unmet_requirements(const Geometry& g) {
  std::vector<std::string> unmet;
  const auto compiled = [&](std::int64_t qk, std::int64_t v) { return g.qk_head_dim() == qk && g.v_head_dim == v; };
  if (!compiled(256, 256) && !compiled(192, 128) && !compiled(128, 128)) {
    unmet.push_back("its kernel is compiled for qk/v head dims of 256/256, 192/128 and 128/128, not " +
                    std::to_string(g.qk_head_dim()) + "/" + std::to_string(g.v_head_dim));
  }
  if (g.qk_nope_head_dim % kColumnBlock != 0) {
    unmet.push_back("its kernel reads K_nope by 64 columns, and qk_nope_head_dim is " +
                    std::to_string(g.qk_nope_head_dim));
  }
  if (g.qk_rope_head_dim % kColumnBlock != 0) {
    unmet.push_back("its kernel reads the rope key by 64 columns, and qk_rope_head_dim is " +
                    std::to_string(g.qk_rope_head_dim));
  }
  return unmet;
}

std::int64_t key_tile(const Geometry& geometry) noexcept { return geometry.v_head_dim == 256 ? 80 : 128; }

}  // namespace headrace::attention::mha::sm90
