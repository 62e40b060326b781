// SPDX-License-Identifier: Apache-2.0
#include "attention/verbose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "attention/tile_arithmetic.h"

namespace headrace::attention {
namespace {

bool is_verbose() noexcept {
  static const bool verbose = [] {
    const char* value = std::getenv("HEADRACE_VERBOSE");  // NOLINT(concurrency-mt-unsafe)
    return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
  }();
  return verbose;
}

}  // namespace

VerboseCall::VerboseCall(const Plan& plan, std::int64_t tokens) noexcept
    : plan_(plan), tokens_(tokens), start_(is_verbose() ? std::chrono::steady_clock::now() : decltype(start_)()) {}

VerboseCall::~VerboseCall() {
  if (!is_verbose()) {
    return;
  }
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  const Attention& attention = plan_.attention();
  const Geometry& g = attention.geometry;
  // Fields in a fixed order, comma-separated, for grep and cut.
  std::array<char, 512> line{};
  const auto written = fmt::format_to_n(
      line.data(), line.size(),
      "headrace,attend,cpu:{},{},{},cache:{},h{}r{}n{}p{}v{},requests:{},tokens:{},dense_mha:{},masked_mha:{},"
      "topk_mqa:{},{:.3f} ms\n",
      plan_.threads(), uses_pairs(attention.compute) ? "avx512_bf16" : "float32_tiles", name_of(attention.compute),
      name_of(attention.format), g.num_heads, g.kv_lora_rank, g.qk_nope_head_dim, g.qk_rope_head_dim, g.v_head_dim,
      plan_.requests().size(), tokens_, rows_[0], rows_[1], rows_[2], ms);
  // A failing stderr is nobody's problem here.
  static_cast<void>(std::fwrite(line.data(), 1, std::min(line.size(), written.size), stderr));
}

}  // namespace headrace::attention
