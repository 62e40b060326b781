// SPDX-License-Identifier: Apache-2.0
#include "attention/verbose.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "attention/tile_arithmetic.h"
#include "headrace/cuda.h"

namespace headrace::attention {

Verbosity verbosity_of(const char* value) noexcept {
  const std::string_view text = value == nullptr ? "" : value;
  if (text.empty() || text == "0") {
    return Verbosity::silent;
  }
  return text == "2" ? Verbosity::times : Verbosity::lines;
}

Verbosity verbosity() noexcept {
  static const Verbosity asked = verbosity_of(std::getenv("HEADRACE_VERBOSE"));  // NOLINT(concurrency-mt-unsafe)
  return asked;
}

std::string line_of(const CallReport& report) {
  const Plan& plan = report.plan;
  const Attention& attention = plan.attention();
  const Geometry& g = attention.geometry;
  const CudaDevice* gpu = plan.device().cuda.get();
  std::string line = gpu != nullptr ? fmt::format("headrace,attend,cuda:{},sm_90", gpu->ordinal())
                                    : fmt::format("headrace,attend,cpu:{},{}", plan.threads(),
                                                  uses_pairs(attention.compute) ? "avx512_bf16" : "float32_tiles");
  line += fmt::format(",{},cache:{},h{}r{}n{}p{}v{},requests:{},tokens:{},dense_mha:{},masked_mha:{},topk_mqa:{}",
                      name_of(attention.compute), name_of(attention.format), g.num_heads, g.kv_lora_rank,
                      g.qk_nope_head_dim, g.qk_rope_head_dim, g.v_head_dim, plan.requests().size(), report.tokens,
                      report.rows[0], report.rows[1], report.rows[2]);
  if (gpu != nullptr) {
    line += fmt::format(",workspace:{},tables:{}", plan.workspace_bytes(), plan.table_bytes());
  }
  if (report.ms) {
    line += fmt::format(",{:.3f} ms", *report.ms);
  }
  return line + "\n";
}

void print(const CallReport& report) noexcept {
  try {
    const std::string line = line_of(report);
    // A failing stderr is nobody's problem here, and neither is a line that there is no memory for.
    static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
  } catch (const std::exception&) {
    return;
  }
}

VerboseCall::VerboseCall(const Plan& plan, std::int64_t tokens) noexcept
    : report_{.plan = plan, .tokens = tokens},
      start_(verbosity() == Verbosity::silent ? decltype(start_)() : std::chrono::steady_clock::now()) {}

VerboseCall::~VerboseCall() {
  if (verbosity() != Verbosity::silent) {
    report_.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
    print(report_);
  }
}

}  // namespace headrace::attention
