// SPDX-License-Identifier: Apache-2.0
//
// attend whatever the device holds in lengths, block table and selection: nothing outside the views is written, nothing
// but cache, tables and inputs is read, it ends, and requests whose integers are sound get what they always get.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "case_on_device.h"
#include "headrace/cuda.h"
#include "hostile_kit.h"
#include "support/attention_case.h"
#include "support/random.h"
#include "uploaded_plan.h"

namespace headrace::test {
namespace {

/// A batch and the paths its plan takes.
struct Kind {
  const char* name;
  Geometry geometry;
  std::vector<RequestShape> requests;
  SelectionRule rule;
  std::optional<Path> force = std::nullopt;
  SelectionSpace space = SelectionSpace::request_position;
  CacheFormat format = CacheFormat::bfloat16;
  std::int64_t padding = 0;  ///< of selections at most
  double mqa_rate = 1.0;     ///< of topk_mqa, in that of the nominal profile
  double mask_rate = 1.0;    ///< of lists and masks, likewise
};

std::ostream& operator<<(std::ostream& stream, const Kind& kind) { return stream << kind.name; }

constexpr Geometry kMha{2, 64, 192, 64, 256};
constexpr Geometry kMqa{2, 512, 64, 64, 64};
constexpr Geometry kBoth{2, 512, 192, 64, 256};

const Kind kKinds[] = {
    {.name = "dense",
     .geometry = kMha,
     .requests = {{70, 100}, {5, 60}, {129, 0}, {1, 30}, {0, 20}},
     .rule = SelectionRule::none(),
     .force = Path::dense_mha},
    {.name = "masked",
     .geometry = kMha,
     .requests = {{70, 100}, {5, 60}, {129, 0}, {1, 30}},
     .rule = SelectionRule::opaque(),
     .force = Path::masked_mha},
    {.name = "masked_in_slots",
     .geometry = kMha,
     .requests = {{70, 100}, {5, 60}, {64, 0}},
     .rule = SelectionRule::opaque(),
     .force = Path::masked_mha,
     .space = SelectionSpace::cache_slot},
    {.name = "topk",
     .geometry = kMqa,
     .requests = {{70, 100}, {5, 60}, {1, 30}},
     .rule = SelectionRule::opaque(),
     .force = Path::topk_mqa},
    {.name = "topk_in_slots",
     .geometry = {5, 512, 64, 0, 64},
     .requests = {{3, 20}, {70, 100}, {5, 60}},
     .rule = SelectionRule::opaque(),
     .force = Path::topk_mqa,
     .space = SelectionSpace::cache_slot},
    {.name = "topk_in_fp8_ds_mla",
     .geometry = {12, 512, 64, 64, 64},
     .requests = {{100, 0}, {2, 300}, {5, 60}},
     .rule = SelectionRule::lightning(60),
     .force = Path::topk_mqa,
     .format = CacheFormat::fp8_ds_mla},
    // Lists have room for 128 keys a row, and a spoilt row may name more.
    {.name = "topk_in_wide_rows",
     .geometry = {64, 512, 64, 0, 64},
     .requests = {{4, 700}, {2, 60}, {1, 300}},
     .rule = SelectionRule::lightning(60),
     .force = Path::topk_mqa,
     .padding = 800},
    {.name = "dense_and_topk_in_a_request",
     .geometry = kBoth,
     .requests = {{460, 0}, {5, 60}},
     .rule = SelectionRule::lightning(400),
     .mask_rate = 0.05},
    {.name = "dense_and_masked",
     .geometry = kBoth,
     .requests = {{60, 0}, {150, 0}, {9, 300}},
     .rule = SelectionRule::lightning(60),
     .mqa_rate = 0.001},
    {.name = "all_three",
     .geometry = kBoth,
     .requests = {{60, 0}, {150, 0}, {2, 2000}},
     .rule = SelectionRule::lightning(60),
     .mqa_rate = 0.05},
};

/// The integers that attend reads on the device.
struct Integers {
  Lengths lengths;
  std::vector<std::int32_t> index;  ///< gaps included
  std::vector<std::int32_t> count;
  std::vector<bool> spoilt;  ///< requests whose selection is

  explicit Integers(const Inputs& host)
      : lengths(host.requests),
        index(copy(host.selection.index)),
        count(copy(host.selection.count)),
        spoilt(lengths.requests()) {}

  void spoil_selection(Random& random, const Selection& host, const CacheView& cache) {
    const std::int64_t b = random.below(static_cast<std::int64_t>(spoilt.size()));
    spoilt[static_cast<std::size_t>(b)] = true;
    const auto request = static_cast<std::size_t>(b);
    const bool all_keys = random.chance(0.3);  // as many as there are columns for
    for (std::int64_t t = lengths.query_start[request]; t < lengths.query_start[request + 1]; ++t) {
      for (std::int64_t i = 0; i < host.index.dim(1) && (all_keys || random.chance(0.8)); ++i) {
        index[static_cast<std::size_t>(t * host.index.stride(0) + i)] =
            all_keys ? static_cast<std::int32_t>(i)
                     : hostile<std::int32_t>(random, {lengths.seq_len[request], cache.num_slots(), cache.num_pages, t});
      }
      if (!count.empty()) {
        count[static_cast<std::size_t>(t)] = hostile<std::int32_t>(random, {host.index.dim(1)});
      }
    }
  }

 private:
  static std::vector<std::int32_t> copy(const View<const std::int32_t>& view) {
    return view.empty() ? std::vector<std::int32_t>()
                        : std::vector<std::int32_t>(view.data(), view.data() + reach_of(view));
  }
};

/// A case whose every array on the device lies between guards.
class GuardedAttend {
 public:
  GuardedAttend(const AttentionCase& problem, const Plan& made, Guard guard)
      : problem_(problem),
        plan_(made),
        host_(problem.inputs()),
        q_(host_.q.as<bfloat16>(), guard, kNan),
        kv_b_proj_(problem.weights().kv_b_proj.as<bfloat16>(), guard, kNan),
        sink_(problem.weights().sink, guard, kNan),
        cache_(View<const std::uint8_t>(reinterpret_cast<const std::uint8_t*>(host_.cache.data),
                                        {host_.cache.num_pages * host_.cache.page_stride}),
               guard, kNan),
        requests_(host_.requests, guard),
        index_(host_.selection.index, guard, std::byte{0}),
        count_(host_.selection.count, guard, std::byte{0}),
        workspace_(made.workspace_bytes(), Guard::wide, kNan) {
    const Outputs outputs = OutputBuffer(problem.output_buffer()).outputs();
    const AnyView& out = outputs.out;
    if (out.dtype() == DType::float32) {
      float32_ = GuardedOutput<float>(3, out.shape(), out.strides());
    } else {
      bfloat16_ = GuardedOutput<bfloat16>(3, out.shape(), out.strides());
    }
    lse_ = GuardedOutput<float>(2, outputs.lse.shape(), outputs.lse.strides());
  }

  void put(const Integers& integers) const {
    requests_.put(integers.lengths);
    index_.put(integers.index);
    count_.put(integers.count);
  }

  /// With the first `rows` rows of the tensors. Returns how long it took, in seconds.
  double run(std::int64_t rows) const {
    Inputs inputs = host_;
    inputs.q = ConstAnyView(q_.view()).slice(0, rows);
    inputs.cache.data = reinterpret_cast<const std::byte*>(cache_.view().data());
    inputs.requests = requests_.get();
    inputs.selection.index = sliced(index_.view(), rows);
    inputs.selection.count = sliced(count_.view(), rows);
    refill();
    const AnyView out = is_float32() ? AnyView(float32_.view()) : AnyView(bfloat16_.view());
    const auto start = std::chrono::steady_clock::now();
    attend(plan_.get(), {kv_b_proj_.view(), sink_.view()}, inputs, {out.slice(0, rows), lse_.view().slice(0, rows)},
           {workspace_.data(), static_cast<std::size_t>(workspace_.size_bytes())}, Stream{});
    device::cuda::synchronize(Stream{});
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  /// Where something outside the outputs' first `rows` rows and the workspace was written, if anywhere.
  [[nodiscard]] std::optional<std::string> damage(std::int64_t rows) const {
    const auto in = [](const char* name, std::optional<std::string> found) {
      return found ? std::optional(std::string(name) + ": " + *found) : std::nullopt;
    };
    if (auto found = in("out", is_float32() ? float32_.damage(rows) : bfloat16_.damage(rows))) {
      return found;
    }
    if (auto found = in("lse", lse_.damage(rows))) {
      return found;
    }
    return in("workspace", workspace_.damage([](std::int64_t) { return true; }));
  }

  /// The bytes of a request's rows of out and of lse.
  [[nodiscard]] std::vector<std::byte> rows_of(std::int64_t request) const {
    const std::int64_t begin = problem_.begin_of(request);
    const std::int64_t end = begin + problem_.spec().requests[static_cast<std::size_t>(request)].query_len;
    std::vector<std::byte> rows = is_float32() ? float32_.rows(begin, end) : bfloat16_.rows(begin, end);
    const std::vector<std::byte> lse = lse_.rows(begin, end);
    rows.insert(rows.end(), lse.begin(), lse.end());
    return rows;
  }

 private:
  static constexpr std::byte kNan{0xff};

  static View<const std::int32_t> sliced(const View<const std::int32_t>& view, std::int64_t rows) {
    return view.empty() ? view : view.slice(0, rows);
  }
  [[nodiscard]] bool is_float32() const { return problem_.spec().out == DType::float32; }
  void refill() const {
    is_float32() ? float32_.refill() : bfloat16_.refill();
    lse_.refill();
    workspace_.refill();
  }

  const AttentionCase& problem_;
  UploadedPlan plan_;
  Inputs host_;
  GuardedInput<bfloat16> q_;
  GuardedInput<bfloat16> kv_b_proj_;
  GuardedInput<float> sink_;
  GuardedInput<std::uint8_t> cache_;
  GuardedRequests requests_;
  GuardedInput<std::int32_t> index_;
  GuardedInput<std::int32_t> count_;
  GuardedMemory workspace_;
  GuardedOutput<float> float32_;
  GuardedOutput<bfloat16> bfloat16_;
  GuardedOutput<float> lse_;
};

class HostileAttend : public testing::TestWithParam<Kind> {
 protected:
  [[nodiscard]] CaseSpec random_spec() {
    const Kind& kind = GetParam();
    CaseSpec spec;
    spec.geometry = kind.geometry;
    spec.rule = kind.rule;
    spec.compute = DType::bfloat16;
    spec.out = random_.chance(0.5) ? DType::float32 : DType::bfloat16;
    spec.format = kind.format;
    spec.requests = kind.requests;
    spec.page_size = 1 + random_.below(40);
    spec.width = 1 + random_.below(60);
    spec.padding = kind.padding > 0 && random_.chance(0.75) ? random_.below(kind.padding) : 0;
    spec.space = kind.space;
    spec.with_count = random_.chance(0.5);
    spec.with_sink = random_.chance(0.5);
    // The flash-attention kernel takes rows at multiples of 16 bytes alone.
    spec.gap = kind.force == Path::topk_mqa ? random_.below(9) : 8 * random_.below(2);
    spec.row_gap = random_.below(3);
    spec.page_gap = random_.below(3);
    spec.seed = random_.bits();
    return spec;
  }

  /// From the exact lengths or from bounds, with as little workspace as may be where a path is forced.
  [[nodiscard]] Plan random_plan(const AttentionCase& problem) {
    const Kind& kind = GetParam();
    Limits limits;
    limits.device.cuda = gpu();
    limits.workspace_bytes = kind.force ? random_limit(random_, problem, *kind.force) : kNoLimit;
    Hints hints;
    hints.profile = Profile::nominal_cuda();
    hints.profile->mqa_gflops *= kind.mqa_rate;
    hints.profile->mask_gkeys *= kind.mask_rate;
    hints.force = kind.force;
    return plan(problem.attention(), problem.batch(), limits, hints);
  }

  [[nodiscard]] Integers random_integers(const AttentionCase& problem, const Integers& sound) {
    const Inputs host = problem.inputs();
    std::int64_t longest = 0;
    for (const RequestShape& shape : problem.spec().requests) {
      longest = std::max(longest, shape.seq_len());
    }
    Integers integers = sound;
    const std::int64_t which = random_.chance(0.5) ? std::int64_t{1} << random_.below(4) : 1 + random_.below(15);
    if ((which & 1) != 0) {  // first, while the tokens of each request are known
      integers.spoil_selection(random_, host.selection, host.cache);
    }
    if ((which & 2) != 0) {
      integers.lengths.spoil_query_start(random_, problem.tokens());
    }
    if ((which & 4) != 0) {
      integers.lengths.spoil_seq_len(random_, longest);
    }
    if ((which & 8) != 0) {
      integers.lengths.spoil_block_table(random_, host.cache.num_pages);
    }
    return integers;
  }

  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

TEST_P(HostileAttend, WritesAndReadsNothingOutside) {
  constexpr int kDrawsACase = 5;
  double sound_seconds = 0.0;
  double hostile_seconds = 0.0;
  int compared = 0;
  for (int draw = 0; draw < hostile_draws();) {
    const AttentionCase problem(random_spec());
    SCOPED_TRACE(testing::Message() << problem.spec());
    const Plan made = random_plan(problem);
    const GuardedAttend call(problem, made, random_guard(random_));
    const Integers sound(problem.inputs());
    const std::int64_t tokens = problem.tokens();
    const double usual = call.run(tokens);
    ASSERT_EQ(call.damage(tokens), std::nullopt);
    std::vector<std::vector<std::byte>> expected;
    for (std::size_t b = 0; b < sound.lengths.requests(); ++b) {
      expected.push_back(call.rows_of(static_cast<std::int64_t>(b)));
    }
    for (int i = 0; i < kDrawsACase && draw < hostile_draws(); ++i, ++draw) {
      SCOPED_TRACE(testing::Message() << "draw " << draw);
      const Integers integers = random_integers(problem, sound);
      const std::int64_t rows = random_.chance(0.25) ? 1 + random_.below(tokens) : tokens;
      call.put(integers);
      hostile_seconds += call.run(rows);
      sound_seconds += usual;
      ASSERT_EQ(call.damage(rows), std::nullopt)
          << testing::PrintToString(integers.lengths.query_start) << ", seq_len "
          << testing::PrintToString(integers.lengths.seq_len) << ", " << rows << " of " << tokens << " rows";
      for (std::size_t b = 0; b < expected.size(); ++b) {
        if (!integers.spoilt[b] && integers.lengths.is_sound(sound.lengths, b) &&
            integers.lengths.query_start[b + 1] <= rows) {
          ++compared;
          ASSERT_EQ(call.rows_of(static_cast<std::int64_t>(b)), expected[b]) << "request " << b << " has other bits";
        }
      }
    }
  }
  // Loops that lengths bound, and not the plan, would take for ever. The first runs of all may have been slow or quick.
  EXPECT_LE(hostile_seconds, 10.0 * sound_seconds + 2.0);
  std::printf("%d draws, %d sound requests beside them, %.2f times the sound ones' time\n", hostile_draws(), compared,
              hostile_seconds / sound_seconds);
}

INSTANTIATE_TEST_SUITE_P(Kinds, HostileAttend, testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

// ---- cases that were written outside once ---------------------------------------------------------------------------

class HostileLengths : public testing::TestWithParam<Path> {
 protected:
  [[nodiscard]] static CaseSpec spec(std::vector<RequestShape> requests) {
    CaseSpec spec;
    spec.geometry = GetParam() == Path::topk_mqa ? kMqa : kMha;
    spec.rule = GetParam() == Path::dense_mha ? SelectionRule::none() : SelectionRule::opaque();
    spec.compute = DType::bfloat16;
    spec.out = DType::bfloat16;
    spec.format = CacheFormat::bfloat16;
    spec.requests = std::move(requests);
    spec.page_size = 16;
    spec.width = 20;
    spec.seed = fresh_seed();
    return spec;
  }

  /// Runs a plan of all requests' lengths on the first `rows` rows with other lengths.
  /// @param sound  requests that must get what they get with their own lengths
  static void expect_held(std::vector<RequestShape> requests, std::int64_t rows,
                          const std::vector<std::int32_t>& query_start, const std::vector<std::int32_t>& seq_len,
                          const std::vector<std::int64_t>& sound = {}) {
    const AttentionCase problem(spec(std::move(requests)));
    SCOPED_TRACE(testing::Message() << problem.spec());
    const Plan made = plan_on_gpu(problem, problem.batch(), GetParam());
    const GuardedAttend call(problem, made, Guard::wide);
    call.run(problem.tokens());
    std::vector<std::vector<std::byte>> expected(sound.size());
    std::ranges::transform(sound, expected.begin(), [&](std::int64_t request) { return call.rows_of(request); });
    Integers integers(problem.inputs());
    integers.lengths.query_start = query_start;
    integers.lengths.seq_len = seq_len;
    call.put(integers);
    call.run(rows);
    ASSERT_EQ(call.damage(rows), std::nullopt);
    for (std::size_t i = 0; i < sound.size(); ++i) {
      ASSERT_EQ(call.rows_of(sound[i]), expected[i]) << "request " << sound[i];
    }
  }
};

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

TEST_P(HostileLengths, MoreTokensThanRows) { expect_held({{128, 0}}, 128, {0, 200}, {128}); }

TEST_P(HostileLengths, TensorsOfFewerRowsThanPlanned) { expect_held({{100, 0}}, 50, {0, 100}, {100}); }

TEST_P(HostileLengths, TokensBeforeTheFirst) { expect_held({{128, 0}}, 128, {-64, 64}, {128}); }

TEST_P(HostileLengths, ARequestThatEndsAtTheLastInt) {
  expect_held({{128, 0}, {128, 0}}, 256, {0, 128, kMost}, {128, 128}, {0});
  expect_held({{128, 0}, {128, 0}}, 256, {0, 128, kMost}, {128, kMost}, {0});
}

TEST_P(HostileLengths, AsManyKeysAsAnIntHas) {
  expect_held({{128, 0}, {128, 0}}, 256, {0, 128, 256}, {128, kMost}, {0});
  // The numbers of rows of the second request's later tiles do not reach as far.
  expect_held({{128, 0}, {300, 0}}, 428, {0, 128, 129}, {128, kMost}, {0});
}

INSTANTIATE_TEST_SUITE_P(Paths, HostileLengths, testing::ValuesIn(kPaths),
                         [](const auto& path) { return std::string(name_of(path.param)); });

}  // namespace
}  // namespace headrace::test
