// SPDX-License-Identifier: Apache-2.0
//
// True shapes, which the thousands of small cases of paths_property_test do not reach: R 512, many heads, several
// context blocks and query slices, packed tiles over long unions. Rows are sampled.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "attention/oracle.h"
#include "headrace/attention.h"
#include "selection/generators.h"
#include "support/attention_case.h"
#include "support/output_buffer.h"
#include "support/random.h"
#include "support/run_path.h"

namespace headrace {
namespace {

using test::AttentionCase;
using test::CaseSpec;
using test::OutputBuffer;

struct LargeShape {
  const char* name;
  Geometry geometry;
  std::vector<test::RequestShape> requests;
  const char* selection;  ///< a generator, or "" for the rule `none`
  std::int64_t topk;
  std::int64_t workspace_limit;
};

const std::vector<LargeShape>& shapes() {
  static const std::vector<LargeShape> all = {
      {"glm_rank", {16, 512, 256, 0, 256}, {{70, 1500}, {1, 2100}, {131, 0}}, "drift:0.9", 512, 0},
      {"deepseek_rank", {8, 512, 128, 64, 128}, {{65, 1100}, {130, 3}}, "uniform", 300, 0},
      {"many_heads", {128, 512, 128, 64, 128}, {{3, 1200}}, "uniform", 700, 0},
      {"odd_heads", {5, 512, 192, 64, 256}, {{129, 1000}}, "pooled:4:0.9", 256, 0},
      {"one_head_packed", {1, 512, 64, 64, 64}, {{200, 900}}, "local", 400, 0},
      {"small_workspace", {16, 512, 256, 0, 256}, {{150, 1400}}, "drift:0.8", 512, std::int64_t{24} << 20},
      {"no_selection", {20, 512, 192, 64, 256}, {{80, 1300}}, "", 0, 0},
  };
  return all;
}

class PathsLarge : public testing::TestWithParam<std::tuple<std::size_t, DType>> {};

TEST_P(PathsLarge, GiveTheOraclesAnswer) {
  const LargeShape& shape = shapes()[std::get<0>(GetParam())];
  CaseSpec spec;
  spec.geometry = shape.geometry;
  spec.requests = shape.requests;
  spec.compute = std::get<1>(GetParam());
  spec.out = DType::float32;
  spec.format = spec.compute == DType::float32 ? CacheFormat::float32 : CacheFormat::bfloat16;
  spec.page_size = 64;
  spec.with_sink = true;
  spec.with_selection = false;
  spec.rule = *shape.selection == '\0' ? SelectionRule::none() : SelectionRule::opaque();
  spec.seed = test::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(spec.seed));
  const AttentionCase problem(spec);

  Inputs inputs = problem.inputs();
  Tensor index;
  Tensor count;
  if (*shape.selection != '\0') {
    selection::Generator generator = selection::parse_generator(shape.selection);
    generator.topk = shape.topk;
    generator.seed = spec.seed;
    index = Tensor(DType::int32, {problem.tokens(), generator.width()});
    count = Tensor(DType::int32, {problem.tokens()});
    std::int64_t first = 0;
    for (std::size_t b = 0; b < shape.requests.size(); ++b) {
      const std::int64_t end = first + shape.requests[b].query_len;
      generator.fill(static_cast<std::int64_t>(b), shape.requests[b].context_len,
                     index.view_as<std::int32_t>().slice(first, end), count.view_as<std::int32_t>().slice(first, end));
      first = end;
    }
    inputs.selection = {index.view_as<std::int32_t>(), count.view_as<std::int32_t>(), SelectionSpace::request_position};
  }

  for (const Path path : kPaths) {
    if (path == Path::dense_mha && spec.rule.kind() != SelectionRule::Kind::none) {
      continue;  // the requirements that refuse it have tests of their own
    }
    test::RunOptions options;
    options.threads = 2;
    if (shape.workspace_limit != 0) {
      options.workspace_limit = shape.workspace_limit;
    }
    OutputBuffer result = problem.output_buffer();
    const Plan plan = test::plan_path(problem, path, options);
    test::run_plan(plan, problem, inputs, result.outputs());
    std::int64_t token = 0;
    for (std::size_t b = 0; b < shape.requests.size(); ++b) {
      const test::RequestShape& request = shape.requests[b];
      for (std::int64_t i = 0; i < request.query_len; i += 1 + request.query_len / 6) {
        const attention::OracleRow expected =
            attention::oracle_row(problem.attention(), problem.weights(), inputs, static_cast<std::int64_t>(b),
                                  token + i, request.context_len + i);
        double difference = 0.0;
        double reference = 0.0;
        for (std::int64_t h = 0; h < shape.geometry.num_heads; ++h) {
          for (std::int64_t d = 0; d < shape.geometry.v_head_dim; ++d) {
            const double want = expected.out[static_cast<std::size_t>(h * shape.geometry.v_head_dim + d)];
            const double delta = result.out(token + i, h, d) - want;
            difference += delta * delta;
            reference += want * want;
          }
          EXPECT_NEAR(static_cast<double>(result.lse(token + i, h)), expected.lse[static_cast<std::size_t>(h)],
                      spec.compute == DType::float32 ? 1e-4 : 2e-2);
        }
        EXPECT_LE(std::sqrt(difference / reference), spec.compute == DType::float32 ? 1e-5 : 2e-2)
            << name_of(path) << ", request " << b << ", row " << i;
      }
      token += request.query_len;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PathsLarge,
                         testing::Combine(testing::Range<std::size_t>(0, shapes().size()),
                                          testing::Values(DType::float32, DType::bfloat16)),
                         [](const testing::TestParamInfo<std::tuple<std::size_t, DType>>& info) {
                           return std::string(shapes()[std::get<0>(info.param)].name) + "_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace headrace
