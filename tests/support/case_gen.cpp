// SPDX-License-Identifier: Apache-2.0
#include "support/case_gen.h"

#include <algorithm>

namespace headrace::test {
namespace {

std::int64_t between(std::int64_t least, std::int64_t most) { return *rc::gen::inRange<std::int64_t>(least, most + 1); }

bool one_in(std::int64_t n) { return between(0, n - 1) == n - 1; }

Geometry any_geometry(CacheFormat format) {
  Geometry g;
  g.num_heads = between(1, 20);
  g.kv_lora_rank = one_in(16) ? 512 : between(16, 192);
  g.qk_nope_head_dim = between(16, 256);
  g.qk_rope_head_dim = *rc::gen::arbitrary<bool>() ? 2 * between(8, 128) : 0;
  g.v_head_dim = between(16, 256);
  if (format == CacheFormat::fp8_ds_mla) {
    g.kv_lora_rank = 512;
    g.qk_rope_head_dim = g.qk_rope_head_dim == 0 ? 0 : 64;
  }
  return g;
}

RequestShape any_request() {
  RequestShape shape;
  switch (between(0, 5)) {
    case 0:
      shape.query_len = between(0, 1);
      break;
    case 5:
      shape.query_len = between(0, 70);
      break;
    default:
      shape.query_len = between(0, 11);
  }
  shape.context_len = one_in(8) ? between(0, 230) : one_in(3) ? 0 : between(0, 40);
  return shape;
}

SelectionRule any_rule(std::int64_t longest) {
  switch (between(0, 7)) {
    case 0:
      return SelectionRule::none();
    case 1:
      return SelectionRule::lightning(between(1, longest + 3));
    case 2:
    case 3: {
      const std::int64_t pool = between(1, 6);
      return SelectionRule::kpool(pool * (1 + between(0, longest) / pool), pool, *rc::gen::arbitrary<bool>());
    }
    default:
      return SelectionRule::opaque();
  }
}

SelectionRule covering_rule(std::int64_t longest) {
  switch (between(0, 2)) {
    case 0:
      return SelectionRule::none();
    case 1:
      return SelectionRule::lightning(std::max<std::int64_t>(longest, 1) + between(0, 3));
    default: {
      const std::int64_t pool = between(1, 6);
      return SelectionRule::kpool((longest + pool) / pool * pool, pool, true);
    }
  }
}

/// Keeps a case to about a hundredth of a second by taking heads from it, the dimension that work is linear in.
void limit_work(CaseSpec& spec) {
  const Geometry& g = spec.geometry;
  double pairs = 0.0;
  double rows = 0.0;
  for (const RequestShape& request : spec.requests) {
    rows += static_cast<double>(request.query_len);
    pairs += static_cast<double>(request.query_len) * static_cast<double>(request.seq_len());
  }
  const double a_head = pairs * static_cast<double>(2 * g.kv_lora_rank + g.qk_rope_head_dim) +
                        (rows + 20.0) * static_cast<double>((g.qk_nope_head_dim + g.v_head_dim) * g.kv_lora_rank);
  constexpr double kMostWork = 1.5e7;
  const auto heads = static_cast<std::int64_t>(kMostWork / a_head);
  spec.geometry.num_heads = std::clamp<std::int64_t>(heads, 1, g.num_heads);
}

CaseSpec any_case(const Demand& demand) {
  CaseSpec spec;
  spec.format = *rc::gen::element(CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8, CacheFormat::float32,
                                  CacheFormat::bfloat16, CacheFormat::fp8, CacheFormat::fp8_ds_mla);
  spec.compute = *rc::gen::element(DType::float32, DType::bfloat16);
  spec.out = spec.compute == DType::bfloat16 && *rc::gen::arbitrary<bool>() ? DType::bfloat16 : DType::float32;
  spec.geometry = any_geometry(spec.format);
  const auto requests = *rc::gen::inRange(demand.least_requests, demand.most_requests + 1);
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    spec.requests.push_back(any_request());
    longest = std::max(longest, spec.requests.back().seq_len());
  }
  spec.rule = demand.covered ? covering_rule(longest) : any_rule(longest);
  spec.page_size = between(1, 70);
  spec.spare_pages = between(0, 3);
  spec.row_gap = one_in(2) ? between(0, 9) : 0;
  spec.page_gap = one_in(2) ? between(0, 9) : 0;
  spec.gap = one_in(2) ? between(0, 5) : 0;
  spec.width = one_in(4) ? between(0, 130) : between(0, 20);
  spec.padding = one_in(4) ? between(0, 60) : 0;
  spec.space = !demand.by_position && one_in(3) ? SelectionSpace::cache_slot : SelectionSpace::request_position;
  spec.with_selection = spec.rule.kind() != SelectionRule::Kind::none || *rc::gen::arbitrary<bool>();
  spec.with_count = *rc::gen::arbitrary<bool>();
  spec.with_sink = *rc::gen::arbitrary<bool>();
  spec.repeat_page = one_in(6);
  spec.spread = spec.compute == DType::float32 && one_in(3) ? 4.0 : 1.0;
  spec.seed = *rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<std::uint64_t>());
  limit_work(spec);
  return spec;
}

}  // namespace

rc::Gen<CaseSpec> case_specs(const Demand& demand) {
  return rc::gen::exec([demand] { return any_case(demand); });
}

}  // namespace headrace::test
