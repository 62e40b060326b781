// SPDX-License-Identifier: Apache-2.0
//
// The calls of the C interface on the GPU, against the same calls on the processor.
#include "headrace/c_api.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "headrace/dtype.h"
#include "headrace/tensor.h"
#include "support/random.h"

namespace headrace::test {
namespace {

using Bytes = std::vector<std::byte>;

/// Frees what the interface handed out.
struct Free {
  void operator()(HrDevice* device) const { hr_device_free(device); }
  void operator()(HrPlan* plan) const { hr_plan_free(plan); }
};

void well(HrError* error) {
  if (error != nullptr) {
    const std::string message = hr_error_message(error);
    hr_error_free(error);
    throw std::runtime_error(message);
  }
}

/// Memory where a call works: the processor's, or a copy on the GPU.
class Memory {
 public:
  template <class T>
  Memory(const std::vector<T>& values, bool on_gpu) : Memory(values.size() * sizeof(T), on_gpu) {
    std::memcpy(host_.data(), values.data(), values.size() * sizeof(T));
    if (on_gpu) {
      gpu_.upload({host_.data(), values.size() * sizeof(T)});
    }
  }
  Memory(std::size_t bytes, bool on_gpu)
      : host_(DType::uint8, {static_cast<std::int64_t>(bytes)}),
        gpu_(on_gpu ? static_cast<std::int64_t>(bytes) : 0),
        on_gpu_(on_gpu) {
    if (on_gpu) {
      gpu_.fill(std::byte{0});
    }
  }
  [[nodiscard]] void* data() { return on_gpu_ ? static_cast<void*>(gpu_.data()) : host_.data(); }
  [[nodiscard]] std::int64_t bytes() const { return host_.size_bytes(); }
  /// Its values, once the GPU is done.
  template <class T>
  [[nodiscard]] std::vector<T> values() {
    std::vector<T> result(static_cast<std::size_t>(bytes()) / sizeof(T));
    if (on_gpu_) {
      gpu_.download(std::as_writable_bytes(std::span(result)));
    } else {
      std::memcpy(static_cast<void*>(result.data()), host_.data(), result.size() * sizeof(T));
    }
    return result;
  }

 private:
  Tensor host_;
  device::cuda::DeviceBuffer gpu_;
  bool on_gpu_;
};

HrView view(Memory& memory, std::int32_t dtype, std::initializer_list<std::int64_t> shape) {
  HrView result{};
  result.data = memory.data();
  result.dtype = dtype;
  result.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), result.shape);
  std::int64_t stride = 1;
  for (std::int32_t i = result.rank - 1; i >= 0; --i) {
    result.stride[i] = stride;
    stride *= result.shape[i];
  }
  return result;
}

constexpr std::int64_t kHeads = 3;
constexpr std::int64_t kRank = 64;
constexpr std::int64_t kNope = 192;
constexpr std::int64_t kRope = 64;
constexpr std::int64_t kValue = 256;
constexpr std::int64_t kTopk = 40;
constexpr std::int64_t kIndexHeads = 4;
constexpr std::int64_t kIndexDim = 32;
constexpr std::int64_t kPageSize = 16;
constexpr std::int64_t kPages = 13;
constexpr std::int64_t kTokens = 180;  // 100 of the first request, 80 new ones of the second
constexpr std::int64_t kLongest = 100;

/// What a step gives, from the device's memory.
struct Results {
  Bytes cache;
  Bytes index_cache;
  std::vector<std::int32_t> index;
  std::vector<std::int32_t> count;
  std::vector<float> scores;
  std::vector<float> out;
  std::vector<float> lse;
};

std::vector<bfloat16> draw(Random& random, std::int64_t count, bool whole) {
  std::vector<bfloat16> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.emplace_back(whole ? static_cast<float>(random.below(5) - 2) : 0.3F * random.normal());
  }
  return values;
}

/// One layer of a step: append, append_index_keys, select, scores and attend. Scores are small whole numbers, so that
/// both devices rank alike.
Results run(HrDevice* device, std::uint64_t seed) {
  Random random(seed);
  const bool on_gpu = device != nullptr;
  const device::cuda::OwnedStream owned;
  void* const stream = on_gpu ? static_cast<Stream>(owned).handle : nullptr;

  HrAttention attention{};
  attention.size = sizeof attention;
  attention.num_heads = kHeads;
  attention.kv_lora_rank = kRank;
  attention.qk_nope_head_dim = kNope;
  attention.qk_rope_head_dim = kRope;
  attention.v_head_dim = kValue;
  attention.scale = 0.06;
  attention.rule = HR_RULE_LIGHTNING;
  attention.topk = kTopk;
  attention.compute = HR_BFLOAT16;
  attention.format = HR_CACHE_BFLOAT16;
  attention.space = HR_REQUEST_POSITION;

  const std::vector<std::int32_t> lengths{100, 80};
  HrBatch batch{};
  batch.size = sizeof batch;
  batch.requests = 2;
  batch.query_len = lengths.data();
  batch.seq_len_bound = lengths.data();
  HrLimits limits{};
  limits.size = sizeof limits;
  limits.device = device;
  HrPlan* made = nullptr;
  well(hr_plan_create(&attention, &batch, &limits, nullptr, &made));
  const std::unique_ptr<HrPlan, Free> plan(made);
  Memory tables(static_cast<std::size_t>(hr_plan_table_bytes(plan.get())), on_gpu);
  if (on_gpu) {
    const HrMemory memory{tables.data(), tables.bytes()};
    well(hr_plan_upload(plan.get(), &memory, stream));
  }

  std::vector<std::int32_t> pages(14);
  std::iota(pages.rbegin() + 2, pages.rend(), 0);
  std::vector<std::int64_t> slots;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const std::int64_t position = t < 100 ? t : t - 100;
    const std::int64_t page = pages[static_cast<std::size_t>((t < 100 ? 0 : 7) + position / kPageSize)];
    slots.push_back(page * kPageSize + position % kPageSize);
  }
  Memory query_start(std::vector<std::int32_t>{0, 100, 180}, on_gpu);
  Memory seq_len(lengths, on_gpu);
  Memory block_table(pages, on_gpu);
  Memory slot_mapping(slots, on_gpu);
  HrRequests requests{};
  requests.query_start = view(query_start, HR_INT32, {3});
  requests.seq_len = view(seq_len, HR_INT32, {2});
  requests.block_table = view(block_table, HR_INT32, {2, 7});

  const auto cache_on = [](Memory& memory, std::int64_t row) {
    HrCache cache{};
    cache.data = memory.data();
    cache.num_pages = kPages;
    cache.page_size = kPageSize;
    cache.page_stride = kPageSize * row;
    cache.row_stride = row;
    return cache;
  };
  std::int64_t row = 0;
  well(hr_cache_row_bytes(&attention, &row));
  Memory cache(static_cast<std::size_t>(kPages * kPageSize * row), on_gpu);
  Memory latent(draw(random, kTokens * kRank, false), on_gpu);
  Memory rope_key(draw(random, kTokens * kRope, false), on_gpu);
  HrAppendCall append{};
  append.size = sizeof append;
  append.cache = cache_on(cache, row);
  append.latent = view(latent, HR_BFLOAT16, {kTokens, kRank});
  append.rope_key = view(rope_key, HR_BFLOAT16, {kTokens, kRope});
  append.slot_mapping = view(slot_mapping, HR_INT64, {kTokens});
  append.device = device;
  append.stream = stream;
  well(hr_append(&attention, &append));

  HrIndexer indexer{};
  indexer.size = sizeof indexer;
  indexer.num_heads = kIndexHeads;
  indexer.head_dim = kIndexDim;
  indexer.topk = kTopk;
  indexer.compute = HR_BFLOAT16;
  well(hr_index_row_bytes(&indexer, &row));
  Memory index_cache(static_cast<std::size_t>(kPages * kPageSize * row), on_gpu);
  Memory key(draw(random, kTokens * kIndexDim, true), on_gpu);
  HrAppendIndexKeysCall append_keys{};
  append_keys.size = sizeof append_keys;
  append_keys.cache = cache_on(index_cache, row);
  append_keys.key = view(key, HR_BFLOAT16, {kTokens, kIndexDim});
  append_keys.requests = requests;
  append_keys.slot_mapping = append.slot_mapping;
  append_keys.device = device;
  append_keys.stream = stream;
  well(hr_append_index_keys(&indexer, &append_keys));

  std::int64_t bytes = 0;
  std::int64_t useful = 0;
  if (on_gpu) {
    well(hr_cuda_select_workspace(&indexer, kTokens, kLongest, &bytes, &useful));
    EXPECT_GE(useful, bytes);
  } else {
    well(hr_select_workspace_minimum(&indexer, kLongest, &bytes));
  }
  Memory scratch(static_cast<std::size_t>(bytes), on_gpu);
  Memory index_query(draw(random, kTokens * kIndexHeads * kIndexDim, true), on_gpu);
  std::vector<float> weights;
  for (std::int64_t i = 0; i < kTokens * kIndexHeads; ++i) {
    weights.push_back(static_cast<float>(random.below(3) - 1));
  }
  Memory head_weight(weights, on_gpu);
  Memory index(std::vector<std::int32_t>(static_cast<std::size_t>(kTokens * kTopk), -5), on_gpu);
  Memory count(std::vector<std::int32_t>(static_cast<std::size_t>(kTokens), -5), on_gpu);
  HrSelectCall select{};
  select.size = sizeof select;
  select.cache = append_keys.cache;
  select.query = view(index_query, HR_BFLOAT16, {kTokens, kIndexHeads, kIndexDim});
  select.head_weight = view(head_weight, HR_FLOAT32, {kTokens, kIndexHeads});
  select.requests = requests;
  select.index = view(index, HR_INT32, {kTokens, kTopk});
  select.count = view(count, HR_INT32, {kTokens});
  select.workspace = {scratch.data(), scratch.bytes()};
  select.longest_seq_len = kLongest;
  select.some_rows = 1;
  select.rows_begin = 10;  // rows before it are covered, and stay as they are
  select.rows_end = kTokens;
  select.device = device;
  select.stream = stream;
  well(hr_select(&indexer, &select));

  Memory scores(std::vector<float>(static_cast<std::size_t>(kTokens * kLongest), -7.0F), on_gpu);
  HrScoreRowsCall score_rows{};
  score_rows.size = sizeof score_rows;
  score_rows.cache = select.cache;
  score_rows.query = select.query;
  score_rows.head_weight = select.head_weight;
  score_rows.requests = requests;
  score_rows.scores = view(scores, HR_FLOAT32, {kTokens, kLongest});
  score_rows.longest_seq_len = kLongest;
  score_rows.device = device;
  score_rows.stream = stream;
  well(hr_score_rows(&indexer, &score_rows));

  Memory q(draw(random, kTokens * kHeads * (kNope + kRope), false), on_gpu);
  Memory kv_b_proj(draw(random, kHeads * (kNope + kValue) * kRank, false), on_gpu);
  Memory out(std::vector<float>(static_cast<std::size_t>(kTokens * kHeads * kValue)), on_gpu);
  Memory lse(std::vector<float>(static_cast<std::size_t>(kTokens * kHeads)), on_gpu);
  Memory workspace(static_cast<std::size_t>(hr_plan_workspace_bytes(plan.get())), on_gpu);
  HrAttendCall attend{};
  attend.size = sizeof attend;
  attend.q = view(q, HR_BFLOAT16, {kTokens, kHeads, kNope + kRope});
  attend.kv_b_proj = view(kv_b_proj, HR_BFLOAT16, {kHeads * (kNope + kValue), kRank});
  attend.cache = append.cache;
  attend.requests = requests;
  attend.index = select.index;
  attend.count = select.count;
  attend.out = view(out, HR_FLOAT32, {kTokens, kHeads, kValue});
  attend.lse = view(lse, HR_FLOAT32, {kTokens, kHeads});
  attend.workspace = {workspace.data(), workspace.bytes()};
  attend.stream = stream;
  well(hr_attend(plan.get(), &attend));

  return {cache.values<std::byte>(),    index_cache.values<std::byte>(), index.values<std::int32_t>(),
          count.values<std::int32_t>(), scores.values<float>(),          out.values<float>(),
          lse.values<float>()};
}

/// The largest difference; more than any where a value is not finite.
double worst(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = std::isfinite(difference) ? std::max(most, difference) : std::numeric_limits<double>::infinity();
  }
  return most;
}

TEST(CApiOnGpu, AStepIsThatOfTheProcessor) {
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE(testing::Message() << "HEADRACE_TEST_SEED=" << seed);
  HrDevice* made = nullptr;
  well(hr_device_create(0, &made));
  const std::unique_ptr<HrDevice, Free> device(made);
  ASSERT_STREQ(hr_device_unmet(device.get()), "");
  const Results gpu = run(device.get(), seed);
  const Results cpu = run(nullptr, seed);
  EXPECT_EQ(gpu.cache, cpu.cache);
  EXPECT_EQ(gpu.index_cache, cpu.index_cache);
  EXPECT_EQ(gpu.index, cpu.index);
  EXPECT_EQ(gpu.count, cpu.count);
  EXPECT_EQ(gpu.scores, cpu.scores);
  EXPECT_EQ(gpu.index.front(), -5);  // of a row before the range
  EXPECT_LT(worst(gpu.out, cpu.out), 0.03);
  EXPECT_LT(worst(gpu.lse, cpu.lse), 0.03);
  EXPECT_GT(worst(gpu.out, std::vector<float>(gpu.out.size())), 0.1);
}

TEST(CApiOnGpu, AGpuComputesInBfloat16) {
  HrDevice* made = nullptr;
  well(hr_device_create(0, &made));
  const std::unique_ptr<HrDevice, Free> device(made);
  Memory nothing(std::vector<float>(4), true);
  HrIndexer indexer{};
  indexer.size = sizeof indexer;
  indexer.num_heads = 1;
  indexer.head_dim = 16;
  indexer.topk = 1;
  indexer.compute = HR_FLOAT32;
  HrAppendIndexKeysCall call{};
  call.size = sizeof call;
  call.key = view(nothing, HR_FLOAT32, {0, 16});
  call.requests.query_start = view(nothing, HR_INT32, {1});
  call.requests.seq_len = view(nothing, HR_INT32, {0});
  call.requests.block_table = view(nothing, HR_INT32, {0, 0});
  call.slot_mapping = view(nothing, HR_INT64, {0});
  call.device = device.get();
  HrError* const error = hr_append_index_keys(&indexer, &call);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(hr_error_kind(error), HR_UNSUPPORTED);
  EXPECT_STREQ(hr_error_argument(error), "indexer.compute");
  hr_error_free(error);
}

}  // namespace
}  // namespace headrace::test
