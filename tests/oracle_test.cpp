// SPDX-License-Identifier: Apache-2.0
// The oracle judges every path, so it is itself held against the plainest form of the contract: keys and values of
// every head up-projected one by one, membership decided key by key, the cache decoded by arithmetic on bits.
#include "attention/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headrace/error.h"
#include "support/attention_case.h"

namespace headrace {
namespace {

using attention::OracleQuery;
using attention::OracleRow;
using test::AttentionCase;
using test::CaseSpec;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

double e4m3_value(std::uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

double bf16_value(const std::byte* from) {
  const std::uint32_t bits = std::uint32_t{read<std::uint16_t>(from)} << 16;
  return static_cast<double>(std::bit_cast<float>(bits));
}

double to_compute(DType compute, double value) {
  if (compute == DType::float32) {
    return static_cast<double>(static_cast<float>(value));
  }
  if (value == 0.0) {
    return 0.0;
  }
  const double unit = std::ldexp(1.0, std::ilogb(value) - 7);  // 8 significant bits
  return std::nearbyint(value / unit) * unit;
}

/// Codes times scales are float32 products, as every implementation of these formats has them.
double scaled(std::uint8_t code, float scale) {
  return static_cast<double>(static_cast<float>(e4m3_value(code)) * scale);
}

double cached_value(const Attention& attention, const CacheView& cache, std::int64_t slot, std::int64_t i) {
  const std::byte* row = cache.row(slot);
  const std::int64_t rank = attention.geometry.kv_lora_rank;
  double value = 0.0;
  switch (attention.format) {
    case CacheFormat::float32:
      value = static_cast<double>(read<float>(row + 4 * i));
      break;
    case CacheFormat::bfloat16:
      value = bf16_value(row + 2 * i);
      break;
    case CacheFormat::fp8:
      value = scaled(read<std::uint8_t>(row + i), cache.scale);
      break;
    case CacheFormat::fp8_ds_mla:
      value = i < rank ? scaled(read<std::uint8_t>(row + i), read<float>(row + 512 + 4 * (i / 128)))
                       : bf16_value(row + 528 + 2 * (i - rank));
      break;
  }
  return to_compute(attention.compute, value);
}

double element(const ConstAnyView& view, std::int64_t offset) {
  const auto* bytes = static_cast<const std::byte*>(view.data());
  return view.dtype() == DType::float32 ? static_cast<double>(read<float>(bytes + 4 * offset))
                                        : bf16_value(bytes + 2 * offset);
}

bool rule_covers(const SelectionRule& rule, std::int64_t position) {
  const std::int64_t keys = position + 1;
  switch (rule.kind()) {
    case SelectionRule::Kind::none:
      return true;
    case SelectionRule::Kind::lightning:
      return keys <= rule.topk();
    case SelectionRule::Kind::kpool: {
      const std::int64_t pools = rule.topk() / rule.pool();
      return keys / rule.pool() <= pools && (rule.tail() || keys % rule.pool() == 0);
    }
    case SelectionRule::Kind::opaque:
      return false;
  }
  return false;
}

std::int64_t slot_of(const Inputs& inputs, std::int64_t request, std::int64_t key) {
  return inputs.requests.block_table(request, key / inputs.cache.page_size) * inputs.cache.page_size +
         key % inputs.cache.page_size;
}

bool selects(const Selection& selection, std::int64_t token, std::int64_t wanted) {
  const std::int64_t columns = selection.count.empty() ? selection.index.dim(1) : selection.count(token);
  for (std::int64_t column = 0; column < columns; ++column) {
    if (selection.index(token, column) == wanted) {
      return true;
    }
  }
  return false;
}

bool attends(const Attention& attention, const Inputs& inputs, const OracleQuery& query, std::int64_t key) {
  if (rule_covers(attention.rule, query.position)) {
    return key <= query.position;
  }
  if (inputs.selection.space == SelectionSpace::request_position) {
    return key <= query.position && selects(inputs.selection, query.token, key);
  }
  for (std::int64_t earlier = 0; earlier < key; ++earlier) {
    if (slot_of(inputs, query.request, earlier) == slot_of(inputs, query.request, key)) {
      return false;
    }
  }
  return selects(inputs.selection, query.token, slot_of(inputs, query.request, key));
}

/// The up-projected key (nope, then rope) or value of one head.
struct HeadKey {
  std::vector<double> k;
  std::vector<double> v;
};

HeadKey up_project(const Attention& attention, const Weights& weights, const Inputs& inputs, std::int64_t slot,
                   std::int64_t head) {
  const Geometry& g = attention.geometry;
  HeadKey result;
  for (std::int64_t i = 0; i < g.qk_nope_head_dim + g.v_head_dim; ++i) {
    const std::int64_t row = head * (g.qk_nope_head_dim + g.v_head_dim) + i;
    double sum = 0.0;
    for (std::int64_t r = 0; r < g.kv_lora_rank; ++r) {
      sum += element(weights.kv_b_proj, row * weights.kv_b_proj.stride(0) + r) *
             cached_value(attention, inputs.cache, slot, r);
    }
    (i < g.qk_nope_head_dim ? result.k : result.v).push_back(sum);
  }
  for (std::int64_t i = 0; i < g.qk_rope_head_dim; ++i) {
    result.k.push_back(cached_value(attention, inputs.cache, slot, g.kv_lora_rank + i));
  }
  return result;
}

OracleRow literal_row(const Attention& attention, const Weights& weights, const Inputs& inputs,
                      const OracleQuery& query) {
  const Geometry& g = attention.geometry;
  OracleRow row;
  for (std::int64_t head = 0; head < g.num_heads; ++head) {
    double denominator = 0.0;
    std::vector<double> numerator(at(g.v_head_dim));
    for (std::int64_t key = 0; key < inputs.requests.seq_len(query.request); ++key) {
      if (!attends(attention, inputs, query, key)) {
        continue;
      }
      const HeadKey up = up_project(attention, weights, inputs, slot_of(inputs, query.request, key), head);
      double score = 0.0;
      for (std::int64_t i = 0; i < g.qk_head_dim(); ++i) {
        score += element(inputs.q, query.token * inputs.q.stride(0) + head * inputs.q.stride(1) + i) * up.k[at(i)];
      }
      const double weight = std::exp(attention.scale * score);  // small enough here to need no maximum
      denominator += weight;
      for (std::int64_t i = 0; i < g.v_head_dim; ++i) {
        numerator[at(i)] += weight * up.v[at(i)];
      }
    }
    const double sink = weights.sink.empty() ? 0.0 : std::exp(double{weights.sink(head)});
    for (const double value : numerator) {
      row.out.push_back(denominator == 0.0 ? 0.0 : value / (denominator + sink));
    }
    row.lse.push_back(denominator == 0.0 ? -kInfinity : std::log(denominator));
  }
  return row;
}

void expect_near(double have, double want, const CaseSpec& spec) {
  if (std::isinf(want)) {
    EXPECT_EQ(have, want) << spec;
  } else {
    EXPECT_NEAR(have, want, 1e-13 * std::max(10.0, std::fabs(want))) << spec;
  }
}

CaseSpec random_spec(std::uint64_t seed) {
  test::Random random(seed);
  CaseSpec spec;
  spec.seed = random.bits();
  spec.format = static_cast<CacheFormat>(random.below(4));
  spec.compute = random.chance(0.5) ? DType::float32 : DType::bfloat16;
  spec.geometry = {1 + random.below(3), spec.format == CacheFormat::fp8_ds_mla ? 512 : 1 + random.below(40),
                   1 + random.below(20), 2 * random.below(5), 1 + random.below(20)};
  if (spec.format == CacheFormat::fp8_ds_mla) {
    spec.geometry.qk_rope_head_dim = random.chance(0.5) ? 64 : 0;
  }
  const SelectionRule rules[] = {SelectionRule::none(), SelectionRule::opaque(), SelectionRule::lightning(6),
                                 SelectionRule::kpool(6, 2, true), SelectionRule::kpool(6, 3, false)};
  spec.rule = rules[random.below(5)];
  spec.requests = {{random.below(4), random.below(6)}, {0, 3}, {1 + random.below(5), random.below(10)}};
  spec.page_size = 1 + random.below(5);
  spec.row_gap = random.below(3);
  spec.page_gap = random.below(3);
  spec.gap = random.below(3);
  spec.width = random.below(12);
  spec.space = random.chance(0.5) ? SelectionSpace::cache_slot : SelectionSpace::request_position;
  spec.with_count = random.chance(0.5);
  spec.with_sink = random.chance(0.5);
  spec.repeat_page = random.chance(0.3);
  return spec;
}

TEST(Oracle, EqualsTheLiteralForm) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE("HEADRACE_TEST_SEED=" + std::to_string(seed));
  test::Random seeds(seed);
  std::int64_t empty_rows = 0;
  for (int i = 0; i < 300 && !::testing::Test::HasFailure(); ++i) {
    const AttentionCase problem(random_spec(seeds.bits()));
    const std::vector<OracleRow> rows = problem.oracle();
    for (const OracleQuery& query : problem.queries()) {
      const OracleRow want = literal_row(problem.attention(), problem.weights(), problem.inputs(), query);
      const OracleRow& have = rows[at(query.token)];
      ASSERT_EQ(have.out.size(), want.out.size());
      for (std::size_t k = 0; k < want.out.size(); ++k) {
        expect_near(have.out[k], want.out[k], problem.spec());
      }
      for (std::size_t k = 0; k < want.lse.size(); ++k) {
        expect_near(have.lse[k], want.lse[k], problem.spec());
        empty_rows += std::isinf(want.lse[k]) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(empty_rows, 0) << "the cases are meant to include rows that attend to nothing";
}

TEST(Oracle, OneKeyGivesItsValueAndItsScore) {
  // R = 2, one head, nope 1, no rope, v 2: everything can be worked out by hand.
  const float latent[] = {3.0F, -2.0F};
  const float w[] = {0.5F, 1.0F, 1.0F, 0.0F, 0.0F, 4.0F};  // W_UK, then the two rows of W_UV
  const float q[] = {10.0F};
  const float sink[] = {-0.5F};
  const std::int32_t start[] = {0, 1};
  const std::int32_t seq_len[] = {1};
  const std::int32_t table[] = {0};
  const Attention attention{{1, 2, 1, 0, 2}, SelectionRule::none(), 0.1, DType::float32, CacheFormat::float32};
  Weights weights;
  weights.kv_b_proj = View<const float>(w, {3, 2});
  Inputs inputs;
  inputs.q = View<const float>(q, {1, 1, 1});
  inputs.cache = {reinterpret_cast<const std::byte*>(latent), 1, 1, 8, 8, 1.0F};
  inputs.requests = {View<const std::int32_t>(start, {2}), View<const std::int32_t>(seq_len, {1}),
                     View<const std::int32_t>(table, {1, 1})};

  OracleRow row = attention::oracle_row(attention, weights, inputs, 0, 0, 0);
  EXPECT_DOUBLE_EQ(row.lse[0], 0.1 * 10.0 * (0.5 * 3.0 - 2.0));  // -0.5
  EXPECT_DOUBLE_EQ(row.out[0], 3.0);
  EXPECT_DOUBLE_EQ(row.out[1], -8.0);
  EXPECT_DOUBLE_EQ(row.score_norm[0], 2.5);  // the products are 1.5 and -2
  EXPECT_EQ(attention::oracle_cache_row(attention, inputs.cache, 0), (std::vector<float>{3.0F, -2.0F}));

  weights.sink = View<const float>(sink, {1});  // as heavy as the one key: half of the mass
  row = attention::oracle_row(attention, weights, inputs, 0, 0, 0);
  EXPECT_DOUBLE_EQ(row.lse[0], -0.5);
  EXPECT_DOUBLE_EQ(row.out[0], 1.5);
  EXPECT_DOUBLE_EQ(row.out[1], -4.0);
}

TEST(Oracle, GivesTheSameBitsForAnyNumberOfThreads) {
  CaseSpec spec;
  spec.requests = {{40, 10}};
  spec.seed = test::fresh_seed();
  const AttentionCase problem(spec);
  const auto queries = problem.queries();
  const auto one = attention::oracle_rows(problem.attention(), problem.weights(), problem.inputs(), queries, 1);
  const auto three = attention::oracle_rows(problem.attention(), problem.weights(), problem.inputs(), queries, 3);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].out, three[i].out) << spec;
    EXPECT_EQ(one[i].lse, three[i].lse) << spec;
    EXPECT_EQ(one[i].score_norm, three[i].score_norm) << spec;
  }
}

TEST(Oracle, SaysWhatIsWrong) {
  CaseSpec spec;
  spec.requests = {{2, 3}};
  spec.with_selection = false;
  const AttentionCase no_selection(spec);
  EXPECT_THROW(static_cast<void>(no_selection.oracle()), Error);

  spec.rule = SelectionRule::none();
  const AttentionCase problem(spec);
  Inputs inputs = problem.inputs();
  inputs.cache.num_pages = 1;  // the request has two pages
  EXPECT_THROW(static_cast<void>(attention::oracle_row(problem.attention(), problem.weights(), inputs, 0, 1, 4)),
               Error);
}

TEST(Oracle, ServesTrueShapes) {
  CaseSpec spec;
  spec.geometry = {16, 512, 192, 64, 256};
  spec.rule = SelectionRule::none();
  spec.compute = DType::bfloat16;
  spec.format = CacheFormat::bfloat16;
  spec.requests = {{8, 8184}};
  spec.page_size = 64;
  const AttentionCase problem(spec);
  const auto rows = problem.oracle();
  EXPECT_EQ(rows.size(), 8U);
  EXPECT_TRUE(std::isfinite(rows.back().lse[15]));
}

}  // namespace
}  // namespace headrace
