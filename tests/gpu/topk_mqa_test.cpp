// SPDX-License-Identifier: Apache-2.0
//
// topk_mqa on the GPU against the float64 oracle: every head count that fills tiles in its own way, every cache format,
// slices, lengths planned too high, graphs, and bits that depend on nothing but the request.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attention/oracle.h"
#include "captured_graph.h"
#include "case_on_device.h"
#include "headrace/cuda.h"
#include "headrace/error.h"
#include "run_alone.h"
#include "support/attention_case.h"
#include "support/cache_rows.h"
#include "support/compare.h"
#include "support/output_buffer.h"
#include "support/random.h"

namespace headrace::test {
namespace {

constexpr std::int64_t kHeads[] = {1, 2, 3, 4, 5, 8, 12, 16, 20, 24, 32, 33, 40, 64, 65, 128};
constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                    CacheFormat::fp8_ds_mla};
/// nope and v: those of models, and small ones that make the oracle quick.
constexpr std::int64_t kHeadDims[][2] = {{64, 64}, {128, 128}, {192, 256}, {256, 256}, {8, 24}};

int random_cases() {
  const char* chosen = std::getenv("HEADRACE_GPU_CASES");
  return chosen == nullptr ? 150 : std::atoi(chosen);
}

/// For tests that try each case several times.
int fewer_cases() { return std::max(1, random_cases() / 6); }

/// The oracle with all the machine's threads.
std::vector<attention::OracleRow> oracle_of(const AttentionCase& problem) {
  return attention::oracle_rows(problem.attention(), problem.weights(), problem.inputs(), problem.queries());
}

Plan plan_topk(const AttentionCase& problem, std::int64_t limit = kNoLimit) {
  return plan_on_gpu(problem, problem.batch(), Path::topk_mqa, limit);
}

void expect_oracle(const AttentionCase& problem, const OutputBuffer& result) {
  const Comparison found = compare(problem, result, oracle_of(problem), tolerance_of(DType::bfloat16));
  ASSERT_FALSE(found.failure.has_value()) << *found.failure;
  ASSERT_FALSE(result.damage().has_value()) << *result.damage();
}

class TopkMqa : public testing::Test {
 protected:
  std::int64_t between(std::int64_t least, std::int64_t most) { return least + random_.below(most - least + 1); }

  CaseSpec spec(std::int64_t heads, std::vector<RequestShape> requests) {
    CaseSpec spec;
    spec.geometry = {heads, 512, 64, 64, 64};
    spec.compute = DType::bfloat16;
    spec.out = DType::bfloat16;
    spec.format = CacheFormat::bfloat16;
    spec.requests = std::move(requests);
    spec.page_size = 16;
    spec.width = 40;
    spec.seed = seed();
    return spec;
  }

  CaseSpec random_spec(std::int64_t heads, CacheFormat format) {
    CaseSpec spec = this->spec(heads, {});
    const auto& [nope, v] = kHeadDims[heads > 40 ? 0 : between(0, 4)];
    spec.geometry = {heads, 512, nope, 64 * between(0, 1), v};
    spec.format = format;
    spec.out = between(0, 1) == 0 ? DType::float32 : DType::bfloat16;
    constexpr std::int64_t kLengths[] = {0, 1, 63, 64, 65, 127, 129, 200};
    const std::int64_t longest_rows = heads > 40 ? 65 : 200;
    std::int64_t longest = 1;
    for (std::int64_t n = between(1, 4); n > 0; --n) {
      const RequestShape shape{std::min(kLengths[between(0, 7)], longest_rows),
                               between(0, 2) == 0 ? between(0, 500) : kLengths[between(0, 7)]};
      longest = std::max(longest, shape.seq_len());
      spec.requests.push_back(shape);
    }
    spec.page_size = between(1, 70);
    // At multiples of 16 bytes or anyhow: other kernels read them then.
    const std::int64_t unit = between(0, 2) == 0 ? 1 : 16 / test::row_alignment(format);
    spec.row_gap = unit * between(0, 2);
    spec.page_gap = unit * between(0, 2);
    spec.gap = (between(0, 2) == 0 ? 1 : 8) * between(0, 2);
    spec.width = between(1, longest);
    spec.padding = between(0, 2) == 0 ? between(1, 300) : 0;
    spec.with_count = between(0, 1) == 0;
    spec.with_sink = between(0, 1) == 0;
    spec.repeat_page = between(0, 7) == 0;
    const SelectionRule rules[] = {SelectionRule::none(), SelectionRule::lightning(between(1, longest)),
                                   SelectionRule::kpool(4 * between(1, longest / 4 + 1), 4, true),
                                   SelectionRule::opaque(), SelectionRule::opaque(spec.width)};
    spec.rule = rules[between(0, 4)];
    spec.space = spec.rule.kind() == SelectionRule::Kind::opaque && between(0, 1) == 0
                     ? SelectionSpace::cache_slot
                     : SelectionSpace::request_position;
    spec.spread = between(0, 3) == 0 ? 3.0 : 1.0;
    return spec;
  }

  std::uint64_t seed() { return static_cast<std::uint64_t>(random_.below(std::int64_t{1} << 62)); }

  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

TEST_F(TopkMqa, EqualsTheOracle) {
  double worst = 0.0;
  int cut = 0;
  for (int i = 0; i < random_cases(); ++i) {
    // Every pair of head count and format in turn.
    const CaseSpec spec = random_spec(kHeads[i % 16], kFormats[i / 16 % 4]);
    SCOPED_TRACE(testing::Message() << spec);
    const AttentionCase problem(spec);
    const std::int64_t limit = random_limit(random_, problem, Path::topk_mqa);
    SCOPED_TRACE(testing::Message() << "workspace limit " << limit);
    cut += limit == kNoLimit ? 0 : 1;
    const Plan made = plan_topk(problem, limit);
    ASSERT_LE(made.workspace_bytes(), limit);
    const OutputBuffer result = run_on_gpu(problem, made);
    const Comparison found = compare(problem, result, oracle_of(problem), tolerance_of(DType::bfloat16));
    worst = std::max(worst, found.worst_row);
    ASSERT_FALSE(found.failure.has_value()) << *found.failure;
    ASSERT_FALSE(result.damage().has_value()) << *result.damage();
  }
  std::printf("%d cases, %d of them with less workspace: worst row %.2e\n", random_cases(), cut, worst);
}

TEST_F(TopkMqa, EndsOfTilesAndOfPositionBlocks) {
  for (const std::int64_t heads : {1, 3, 8, 16, 40}) {
    for (const std::int64_t rows : {65, 129}) {
      for (const std::int64_t context : {0, 1, 63, 64}) {
        CaseSpec some = spec(heads, {{rows, context}});
        SCOPED_TRACE(testing::Message() << some);
        const AttentionCase problem(some);
        expect_oracle(problem, run_on_gpu(problem, plan_topk(problem)));
      }
    }
  }
}

TEST_F(TopkMqa, AWidthThatIsNoMultipleOfAnything) {
  for (const CacheFormat format : kFormats) {
    CaseSpec some = spec(16, {{13, 2500}, {1, 2200}});
    some.format = format;
    some.rule = SelectionRule::kpool(2048, 4, true);
    SCOPED_TRACE(testing::Message() << some);
    ASSERT_EQ(some.rule.width(), 2051);
    const AttentionCase problem(some);
    expect_oracle(problem, run_on_gpu(problem, plan_topk(problem)));
  }
}

TEST_F(TopkMqa, BuffersWiderThanTheRuleNeeds) {
  for (const auto& [rule, width] : {std::pair(SelectionRule::lightning(2048), std::int64_t{2049}),
                                    std::pair(SelectionRule::kpool(2048, 4, true), std::int64_t{2056}),
                                    std::pair(SelectionRule::lightning(2048), std::int64_t{4096})}) {
    for (const bool with_count : {false, true}) {
      CaseSpec some = spec(8, {{2, 2400}, {1, 2100}});
      some.rule = rule;
      some.padding = width - rule.width();
      some.gap = width == 4096 ? 24 : 0;
      some.with_count = with_count;
      SCOPED_TRACE(testing::Message() << some);
      const AttentionCase problem(some);
      ASSERT_EQ(problem.inputs().selection.index.dim(1), width);
      expect_oracle(problem, run_on_gpu(problem, plan_topk(problem)));
    }
  }
}

/// The entries of a selection, those of a row `column_stride` apart, and rows `row_stride`.
device::cuda::DeviceArray<std::int32_t> spread_out(const View<const std::int32_t>& index, std::int64_t row_stride,
                                                   std::int64_t column_stride) {
  // Between them, keys that would change the result.
  const std::int64_t last = (index.dim(0) - 1) * row_stride + (index.dim(1) - 1) * column_stride;
  std::vector<std::int32_t> entries(static_cast<std::size_t>(last + 1), 1);
  for (std::int64_t token = 0; token < index.dim(0); ++token) {
    for (std::int64_t i = 0; i < index.dim(1); ++i) {
      entries[static_cast<std::size_t>(token * row_stride + i * column_stride)] = index(token, i);
    }
  }
  return device::cuda::DeviceArray<std::int32_t>(entries);
}

TEST_F(TopkMqa, ColumnsOfASelectionLieAnyhow) {
  for (const Path path : {Path::topk_mqa, Path::masked_mha}) {
    CaseSpec some = spec(4, {{70, 130}, {2, 40}});
    some.geometry = {4, 512, 192, 64, 256};
    some.rule = SelectionRule::lightning(50);
    some.padding = 23;
    const AttentionCase problem(some);
    const CaseOnDevice on_device(problem);
    const Plan made = plan_on_gpu(problem, problem.batch(), path);
    const std::vector<std::uint32_t> bits = run_on_gpu(problem, made).bits();
    const View<const std::int32_t> host = problem.inputs().selection.index;
    const std::int64_t tokens = problem.tokens();
    const std::int64_t strides[][2] = {{1, tokens}, {3, 3 * tokens + 1}, {73 * 2 + 1, 2}, {75, 1}};
    for (const auto& [row, column] : strides) {
      const auto entries = spread_out(host, row, column);
      Inputs inputs = on_device.inputs();
      inputs.selection.index = View<const std::int32_t>(entries.data(), 2, host.shape(), {row, column, 0, 0});
      const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
      workspace.fill(std::byte{0xff});
      ASSERT_EQ(run_with(problem, on_device, made, inputs, workspace, Stream{}).bits(), bits)
          << name_of(path) << " with strides " << row << " and " << column;
    }
  }
}

TEST_F(TopkMqa, RowsThatBreakTheirRulesWordLoseTheirLastKeys) {
  CaseSpec some = spec(64, {{2, 700}});  // a tile a row
  some.with_count = false;
  some.rule = SelectionRule::lightning(100);
  some.padding = 500;
  const AttentionCase problem(some);
  const CaseOnDevice on_device(problem);
  const Plan made = plan_topk(problem);
  const auto run = [&](std::int64_t keys) {  // of every row: 0, 1, ..., shuffled
    std::vector<std::int32_t> entries;
    for (std::int64_t token = 0; token < problem.tokens(); ++token) {
      for (std::int64_t i = 0; i < 600; ++i) {
        entries.push_back(static_cast<std::int32_t>(i * 7 % 600 < keys ? i * 7 % 600 : -1));
      }
    }
    const device::cuda::DeviceArray<std::int32_t> index(entries);
    Inputs inputs = on_device.inputs();
    inputs.selection.index = View<const std::int32_t>(index.data(), {problem.tokens(), 600});
    const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
    workspace.fill(std::byte{0xff});
    return run_with(problem, on_device, made, inputs, workspace, Stream{}).bits();
  };
  // The rule's width rounded up to 128.
  const std::vector<std::uint32_t> all_that_have_room = run(128);
  EXPECT_NE(run(127), all_that_have_room);
  EXPECT_EQ(run(129), all_that_have_room);
  EXPECT_EQ(run(600), all_that_have_room);
}

/// Keys are the same ones wherever they lie. So are the bits: rows are read in another way, and rounded in the same.
TEST_F(TopkMqa, RowsOfTheCacheLieAnyhow) {
  for (const CacheFormat format : kFormats) {
    for (const std::int64_t rope : {0, 64}) {
      // Read where they lie, but for float32, and converted first where they are read often.
      for (const std::int64_t rows : {3, 65}) {
        CaseSpec some = spec(12, {{rows, 70}, {2, 30}});
        some.geometry.qk_rope_head_dim = rope;
        some.format = format;
        const std::int64_t unit = test::row_alignment(format);
        some.row_gap = some.page_gap = 16 / unit;
        SCOPED_TRACE(testing::Message() << some);
        const AttentionCase aligned(some);
        const std::vector<std::uint32_t> bits = run_on_gpu(aligned, plan_topk(aligned)).bits();
        some.row_gap = 1;
        some.page_gap = 16 / unit + 1;
        const AttentionCase apart(some);
        ASSERT_EQ(run_on_gpu(apart, plan_topk(apart)).bits(), bits);
        // Strides of the first, from a later address on.
        const CaseOnDevice on_device(aligned);
        Inputs inputs = on_device.inputs();
        const std::int64_t bytes = inputs.cache.num_pages * inputs.cache.page_stride;
        const device::cuda::DeviceBuffer shifted(bytes + unit);
        shifted.upload({aligned.inputs().cache.data, static_cast<std::size_t>(bytes)}, unit);
        inputs.cache.data = shifted.data() + unit;
        const Plan made = plan_topk(aligned);
        const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
        workspace.fill(std::byte{0xff});
        ASSERT_EQ(run_with(aligned, on_device, made, inputs, workspace, Stream{}).bits(), bits);
      }
    }
  }
}

TEST_F(TopkMqa, QueriesAndResultsLieAnyhow) {
  for (const DType out : {DType::bfloat16, DType::float32}) {
    for (const bool in_slices : {false, true}) {
      CaseSpec some = spec(5, {{70, 60}, {2, 30}});
      some.out = out;
      some.gap = 1;
      SCOPED_TRACE(testing::Message() << some);
      const AttentionCase problem(some);
      const std::int64_t everything = plan_topk(problem).workspace_bytes();
      expect_oracle(problem, run_on_gpu(problem, plan_topk(problem, in_slices ? everything - 1 : everything)));
    }
  }
}

/// Every second entry of an array.
device::cuda::DeviceArray<std::int32_t> every_second(const View<const std::int32_t>& host) {
  std::vector<std::int32_t> entries;
  for (std::int64_t i = 0; i < host.dim(0); ++i) {
    entries.insert(entries.end(), {host(i), 7});
  }
  return device::cuda::DeviceArray<std::int32_t>(entries);
}

TEST_F(TopkMqa, LengthsLieAnyhow) {
  CaseSpec some = spec(4, {{70, 60}, {2, 300}});
  some.format = CacheFormat::fp8;  // keys of the first are converted, which reads lengths too
  const AttentionCase problem(some);
  const CaseOnDevice on_device(problem);
  const Requests host = problem.inputs().requests;
  const auto query_start = every_second(host.query_start);
  const auto seq_len = every_second(host.seq_len);
  Inputs inputs = on_device.inputs();
  inputs.requests.query_start = View<const std::int32_t>(query_start.data(), 1, host.query_start.shape(), {2, 0, 0, 0});
  inputs.requests.seq_len = View<const std::int32_t>(seq_len.data(), 1, host.seq_len.shape(), {2, 0, 0, 0});
  const Plan made = plan_topk(problem);
  const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
  workspace.fill(std::byte{0xff});
  expect_oracle(problem, run_with(problem, on_device, made, inputs, workspace, Stream{}));
}

/// Rows of kv_b_proj with gaps, from an odd address on, and its transpose.
TEST_F(TopkMqa, WeightsLieAnyhow) {
  for (const Path path : {Path::topk_mqa, Path::masked_mha}) {
    CaseSpec some = spec(3, {{70, 60}, {2, 30}});
    some.geometry = {3, 512, 192, 64, 256};
    const AttentionCase problem(some);
    const CaseOnDevice on_device(problem);
    const UploadedPlan made(plan_on_gpu(problem, problem.batch(), path));
    const device::cuda::DeviceBuffer workspace(made.get().workspace_bytes());
    const auto host = problem.weights().kv_b_proj.as<bfloat16>();
    const std::int64_t strides[][2] = {{515, 1}, {1, host.dim(0) + 1}};
    for (const auto& [row, column] : strides) {
      std::vector<bfloat16> values(static_cast<std::size_t>((host.dim(0) - 1) * row + (host.dim(1) - 1) * column + 2),
                                   bfloat16(std::numeric_limits<float>::quiet_NaN()));
      for (std::int64_t i = 0; i < host.dim(0); ++i) {
        for (std::int64_t j = 0; j < host.dim(1); ++j) {
          values[static_cast<std::size_t>(1 + i * row + j * column)] = host(i, j);
        }
      }
      const device::cuda::DeviceArray<bfloat16> there(values);
      Weights weights = on_device.weights();
      weights.kv_b_proj = View<const bfloat16>(there.data() + 1, 2, host.shape(), {row, column, 0, 0});
      workspace.fill(std::byte{0xff});
      OutputBuffer result = problem.output_buffer();
      const OutputsOnDevice outputs(result.outputs());
      attend(made.get(), weights, on_device.inputs(), outputs.get(),
             {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, Stream{});
      device::cuda::synchronize(Stream{});
      outputs.bring_back();
      SCOPED_TRACE(testing::Message() << name_of(path) << " with strides " << row << " and " << column);
      expect_oracle(problem, result);
    }
  }
}

TEST_F(TopkMqa, OneQueryAtTheEndOfALongContext) {
  CaseSpec some = spec(16, {{1, (std::int64_t{1} << 17) - 1}});
  some.page_size = 64;
  some.width = 2048;
  some.rule = SelectionRule::opaque(2048);
  const AttentionCase problem(some);
  expect_oracle(problem, run_on_gpu(problem, plan_topk(problem)));
}

TEST_F(TopkMqa, ASelectionOfNothing) {
  CaseSpec some = spec(8, {{70, 30}, {1, 0}});
  some.with_sink = true;
  some.with_count = false;
  const AttentionCase problem(some);
  const CaseOnDevice on_device(problem);
  const device::cuda::DeviceArray<std::int32_t> nothing(
      std::vector<std::int32_t>(static_cast<std::size_t>(problem.tokens() * some.width), -1));
  Inputs inputs = on_device.inputs();
  inputs.selection.index = View<const std::int32_t>(nothing.data(), {problem.tokens(), some.width});
  const Plan made = plan_topk(problem);
  const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
  workspace.fill(std::byte{0xff});
  const OutputBuffer result = run_with(problem, on_device, made, inputs, workspace, Stream{});
  for (std::int64_t token = 0; token < problem.tokens(); ++token) {
    for (std::int64_t head = 0; head < some.geometry.num_heads; ++head) {
      ASSERT_EQ(result.lse(token, head), -std::numeric_limits<float>::infinity());
      for (std::int64_t i = 0; i < some.geometry.v_head_dim; ++i) {
        ASSERT_EQ(result.out(token, head, i), 0.0);
      }
    }
  }
}

// ---- bits -----------------------------------------------------------------------------------------------------------

TEST_F(TopkMqa, BitsDoNotDependOnAnotherRequestsKeys) {
  for (int i = 0; i < fewer_cases(); ++i) {
    CaseSpec some = random_spec(kHeads[between(0, 12)], kFormats[between(0, 3)]);
    some.requests = {{200, 100}, {65, 0}, {1, 300}};
    some.rule = SelectionRule::lightning(100);
    some.space = SelectionSpace::request_position;
    some.repeat_page = false;
    SCOPED_TRACE(testing::Message() << some);
    const AttentionCase problem(some);
    const OutputBuffer first = run_on_gpu(problem, plan_topk(problem));
    const OutputBuffer second = run_on_gpu(problem, plan_topk(problem));
    ASSERT_EQ(first.bits(), second.bits()) << "two runs differ";
    AttentionCase spoilt(some);
    spoilt.spoil(1);
    const OutputBuffer beside = run_on_gpu(spoilt, plan_topk(spoilt));
    ASSERT_EQ(first.bits(0, 200), beside.bits(0, 200)) << "a request with NaN keys spoils the one before it";
    ASSERT_EQ(first.bits(265, 266), beside.bits(265, 266)) << "a request with NaN keys spoils the one after it";
  }
}

TEST_F(TopkMqa, BitsDoNotDependOnTheBatchNorOnCutsAtMultiplesOf64) {
  for (int i = 0; i < fewer_cases(); ++i) {
    CaseSpec some = random_spec(kHeads[between(0, 12)], kFormats[between(0, 3)]);
    // Products of up to 128, of up to 1024 and of more rows are made by different kernels.
    some.requests = {{200, 100}, {257, 0}, {1, 300}, {640, 0}};
    some.space = SelectionSpace::request_position;
    SCOPED_TRACE(testing::Message() << some);
    const AttentionCase problem(some);
    const OutputBuffer together = run_on_gpu(problem, plan_topk(problem));
    const CaseOnDevice on_device(problem);
    OutputBuffer apart = problem.output_buffer();
    const OutputsOnDevice outputs(apart.outputs());
    for (std::int64_t request = 0; request < 4; ++request) {
      const RequestShape& shape = some.requests[static_cast<std::size_t>(request)];
      for (std::int64_t begin = 0; begin < shape.query_len;) {
        const std::int64_t cut = ((shape.context_len + begin) / 64 + between(1, 4)) * 64 - shape.context_len;
        const std::int64_t end = std::min(shape.query_len, cut);
        run_alone(problem, on_device, Path::topk_mqa, request, begin, end, outputs.get());
        begin = end;
      }
    }
    outputs.bring_back();
    ASSERT_EQ(together.bits(), apart.bits());
  }
}

TEST_F(TopkMqa, BitsDoNotDependOnTheWorkspace) {
  for (int i = 0; i < fewer_cases(); ++i) {
    const CaseSpec some = random_spec(kHeads[between(0, 12)], kFormats[between(0, 3)]);
    SCOPED_TRACE(testing::Message() << some);
    const AttentionCase problem(some);
    const std::int64_t limit = random_limit(random_, problem, Path::topk_mqa);
    ASSERT_EQ(run_on_gpu(problem, plan_topk(problem)).bits(), run_on_gpu(problem, plan_topk(problem, limit)).bits());
  }
}

// ---- lengths that the host does not know ----------------------------------------------------------------------------

/// All rows down topk_mqa, or as a router decides for which covered requests are cheaper down dense_mha.
Plan plan_mixed(const AttentionCase& problem, const Batch& batch, bool mixed, std::int64_t limit = kNoLimit) {
  Limits limits;
  limits.workspace_bytes = limit;
  limits.device.cuda = gpu();
  Hints hints;
  hints.profile = Profile::nominal_cuda();
  hints.profile->name = "of this test";
  hints.profile->mqa_gflops /= 4.0;
  if (!mixed) {
    hints.force = Path::topk_mqa;
  }
  return plan(problem.attention(), batch, limits, hints);
}

bool has_path(const Plan& made, Path path) {
  return std::ranges::any_of(made.requests(), [&](const RequestPlan& request) {
    return std::ranges::any_of(request.segments, [&](const Segment& segment) { return segment.path == path; });
  });
}

class TopkMqaBounds : public TopkMqa, public testing::WithParamInterface<bool> {
 protected:
  CaseSpec bounded(std::vector<RequestShape> requests, CacheFormat format) {
    CaseSpec some = spec(8, std::move(requests));
    some.geometry.qk_nope_head_dim = 192;
    some.geometry.v_head_dim = 256;
    some.format = format;
    some.rule = SelectionRule::lightning(200);
    some.with_sink = true;
    return some;
  }
};

TEST_P(TopkMqaBounds, LengthsPlannedTooHighGiveTheExactAnswer) {
  for (const CacheFormat format : {CacheFormat::bfloat16, CacheFormat::fp8_ds_mla}) {
    const AttentionCase problem(bounded({{129, 40}, {64, 0}, {1, 600}, {5, 900}}, format));
    const Batch exact = problem.batch();
    for (std::int32_t more = 0; more <= 4; ++more) {
      std::vector<std::int32_t> query_len(exact.query_len.begin(), exact.query_len.end());
      std::vector<std::int32_t> seq_len(exact.seq_len_bound.begin(), exact.seq_len_bound.end());
      for (std::size_t b = 0; b < seq_len.size(); ++b) {
        seq_len[b] += more;
        query_len[b] += b % 2 == 0 ? more : 0;  // the rest of them too many keys of context
      }
      const Plan made = plan_mixed(problem, {query_len, seq_len, false}, GetParam());
      ASSERT_TRUE(has_path(made, Path::topk_mqa)) << made.explain();
      ASSERT_EQ(has_path(made, Path::dense_mha), GetParam()) << made.explain();
      SCOPED_TRACE(testing::Message() << more << " too many");
      expect_oracle(problem, run_on_gpu(problem, made));
    }
  }
}

TEST_P(TopkMqaBounds, AGraphReplaysWithEverythingChanged) {
  for (const CacheFormat format : {CacheFormat::bfloat16, CacheFormat::fp8}) {
    const AttentionCase first(bounded({{129, 40}, {64, 0}, {1, 600}, {5, 900}}, format));
    Batch bounds = first.batch();
    bounds.exact = false;
    UploadedPlan uploaded(plan_mixed(first, bounds, GetParam()));
    Plan& made = uploaded.get();
    const CaseOnDevice on_device(first);
    OutputBuffer buffer = first.output_buffer();
    const OutputsOnDevice outputs(buffer.outputs());
    const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
    const CapturedGraph graph([&](Stream stream) {
      attend(made, on_device.weights(), on_device.inputs(), outputs.get(),
             {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
    });
    graph.replay();
    outputs.bring_back();
    expect_oracle(first, buffer);

    // Other weights, query, cache, block table and selection, and shorter lengths but for the last request's.
    const AttentionCase second(bounded({{70, 33}, {63, 0}, {1, 300}, {5, 900}}, format));
    Batch later = second.batch();
    later.exact = false;
    made.refresh(later);
    on_device.replace(second);
    graph.replay();
    outputs.bring_back();
    const auto oracle = oracle_of(second);
    const Comparison found = compare(second, buffer, oracle, tolerance_of(DType::bfloat16));
    ASSERT_FALSE(found.failure.has_value()) << *found.failure;
  }
}

TEST_P(TopkMqaBounds, LayersOfAGraphShareASelection) {
  const std::vector<RequestShape> shapes{{129, 40}, {64, 0}, {1, 600}, {5, 900}};
  const AttentionCase first(bounded(shapes, CacheFormat::bfloat16));
  const UploadedPlan uploaded(plan_mixed(first, first.batch(), GetParam()));
  const Plan& made = uploaded.get();
  const CaseOnDevice on_device(first);
  OutputBuffer of_layer[2] = {first.output_buffer(), first.output_buffer()};
  const OutputsOnDevice outputs[2] = {OutputsOnDevice(of_layer[0].outputs()), OutputsOnDevice(of_layer[1].outputs())};
  const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
  const CapturedGraph graph([&](Stream stream) {
    Inputs inputs = on_device.inputs();
    for (const OutputsOnDevice& layer : outputs) {
      attend(made, on_device.weights(), inputs, layer.get(),
             {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
      inputs.selection_kept = true;
    }
  });
  const AttentionCase second(bounded(shapes, CacheFormat::bfloat16));
  on_device.replace(second);
  workspace.fill(std::byte{0xff});
  graph.replay();
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(testing::Message() << "layer " << i);
    outputs[i].bring_back();
    expect_oracle(second, of_layer[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, TopkMqaBounds, testing::Bool(),
                         [](const auto& mixed) { return mixed.param ? "mixed" : "forced"; });

// ---- what is refused ------------------------------------------------------------------------------------------------

std::string message_of(const AttentionCase& problem, const Inputs& inputs) {
  const UploadedPlan uploaded(plan_topk(problem));
  const Plan& made = uploaded.get();
  const CaseOnDevice on_device(problem);
  OutputBuffer result = problem.output_buffer();
  const OutputsOnDevice outputs(result.outputs());
  const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
  try {
    attend(made, on_device.weights(), inputs, outputs.get(),
           {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, Stream{});
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(TopkMqa, RefusesWhatItCannotRead) {
  const AttentionCase problem(spec(4, {{5, 200}}));
  const CaseOnDevice on_device(problem);
  Inputs inputs = on_device.inputs();
  inputs.q = ConstAnyView(inputs.q.data(), DType::bfloat16, 3, inputs.q.shape(), {8 * 128, 256, 2, 0});
  EXPECT_EQ(message_of(problem, inputs).rfind("q: ", 0), 0U) << message_of(problem, inputs);
}

TEST_F(TopkMqa, IsChosenWhereItIsPredictedFastest) {
  const auto path_of = [](std::int32_t tokens) {
    Attention attention;
    attention.geometry = {16, 512, 192, 64, 256};
    attention.scale = 0.0625;
    attention.compute = DType::bfloat16;
    attention.format = CacheFormat::bfloat16;
    attention.rule = SelectionRule::lightning(2048);
    Limits limits;
    limits.device.cuda = gpu();
    const std::int32_t lengths[] = {tokens};
    return plan(attention, Batch{.query_len = lengths, .seq_len_bound = lengths}, limits).requests()[0].path;
  };
  EXPECT_EQ(path_of(2048), Path::dense_mha);
  EXPECT_EQ(path_of(16384), Path::topk_mqa);
}

TEST_F(TopkMqa, OtherGeometriesAreRefusedWithTheReason) {
  CaseSpec some = spec(2, {{4, 0}});
  some.geometry.kv_lora_rank = 256;
  const AttentionCase problem(some);
  try {
    static_cast<void>(plan_topk(problem));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("kv_lora_rank of 512"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headrace::test
