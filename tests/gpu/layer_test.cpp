// SPDX-License-Identifier: Apache-2.0
//
// CudaLayer against Layer, stage by stage and as a whole, on random weights.
#include "headrace/layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "captured_graph.h"
#include "device/cuda/stream.h"
#include "device/cuda/tensor.h"
#include "gpu.h"
#include "headrace/cuda_layer.h"
#include "headrace/error.h"
#include "layer/random.h"
#include "selection/generators.h"
#include "support/layer_run.h"
#include "support/random.h"
#include "uploaded_plan.h"

namespace headrace::test {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::DeviceTensor;

/// What bfloat16 roundings of other sums move a row by; a wrong rope, norm or stride moves it by more than 1e-1.
constexpr double kTolerance = 2e-2;
constexpr std::int64_t kTopk = 32;

struct Named {
  const char* name;
  ModelConfig config;

  friend std::ostream& operator<<(std::ostream& out, const Named& named) { return out << named.name; }
};

/// @param index_heads  4 is no multiple of 8, which products take
Named lightning(const char* name, const Geometry& geometry, std::int64_t index_heads, bool index_interleave) {
  ModelConfig config;
  config.model_type = "deepseek_v32";
  config.hidden_size = 256;
  config.num_layers = 2;
  config.max_position_embeddings = 200000;
  config.geometry = geometry;
  config.q_lora_rank = 96;
  config.rope.dim = geometry.qk_rope_head_dim;
  config.rope.theta = 50000.0;
  config.softmax_scale = 1.0 / std::sqrt(static_cast<double>(geometry.qk_head_dim()));
  config.layer_kinds = {LayerKind::sparse_attention, LayerKind::sparse_attention};
  config.shares_selection = {false, true};
  config.q_a_norm_epsilon = 1e-5;
  config.kv_a_norm_epsilon = 1e-6;
  IndexerGeometry indexer;
  indexer.num_heads = index_heads;
  indexer.head_dim = 128;
  indexer.topk = kTopk;
  indexer.rope_dim = geometry.qk_rope_head_dim;
  indexer.rope_interleave = index_interleave;
  config.indexer = indexer;
  return {name, config};
}

Named kpool(const char* name, const Geometry& geometry) {
  Named made = lightning(name, geometry, 8, false);
  made.config.indexer->kpool = true;
  made.config.indexer->pool = 4;
  made.config.indexer->tail = true;
  return made;
}

Named yarn(Named made) {
  Yarn yarn;
  yarn.factor = 40.0;
  yarn.original_max_position_embeddings = 4096;
  made.config.rope.yarn = yarn;
  return made;
}

Named without_indexer(Named made) {
  made.config.model_type = "deepseek_v2";
  made.config.q_lora_rank.reset();
  made.config.layer_kinds = {LayerKind::full_attention, LayerKind::full_attention};
  made.config.shares_selection = {false, false};
  made.config.indexer.reset();
  return made;
}

const Geometry kGlm{3, 128, 192, 64, 256};
const Geometry kFlash{4, 128, 256, 0, 256};
const Geometry kDeepSeek{5, 128, 128, 64, 128};

/// A view of the GPU as float32 rows [T, everything else] on the host.
template <class T>
Tensor rows_of(const View<const T>& view) {
  std::int64_t last = 0;
  std::int64_t columns = 1;
  for (int i = 0; i < view.rank(); ++i) {
    last += (view.dim(i) - 1) * view.stride(i);
    columns *= i == 0 ? 1 : view.dim(i);
  }
  std::vector<T> values(static_cast<std::size_t>(last + 1));
  device::cuda::download(reinterpret_cast<const std::byte*>(view.data()), std::as_writable_bytes(std::span(values)),
                         Stream{});
  Tensor result(DType::float32, {view.dim(0), columns});
  for (std::int64_t t = 0; t < view.dim(0); ++t) {
    for (std::int64_t i = 0; i < columns; ++i) {
      const std::int64_t at =
          view.rank() == 2 ? i * view.stride(1) : i / view.dim(2) * view.stride(1) + i % view.dim(2) * view.stride(2);
      result.view_as<float>()(t, i) = static_cast<float>(values[static_cast<std::size_t>(t * view.stride(0) + at)]);
    }
  }
  return result;
}

/// A contiguous tensor of the host, likewise.
Tensor rows_of(const Tensor& tensor) {
  std::int64_t columns = 1;
  for (int i = 1; i < tensor.rank(); ++i) {
    columns *= tensor.dim(i);
  }
  Tensor result(DType::float32, {tensor.dim(0), columns});
  for (std::int64_t i = 0; i < tensor.dim(0) * columns; ++i) {
    result.view_as<float>().data()[i] = tensor.dtype() == DType::float32
                                            ? tensor.view_as<float>().data()[i]
                                            : static_cast<float>(tensor.view_as<bfloat16>().data()[i]);
  }
  return result;
}

void expect_close(const char* what, const Tensor& actual, const Tensor& expected, double tolerance = kTolerance) {
  const RelativeError error = relative_error(actual.view_as<float>(), expected.view_as<float>());
  EXPECT_LE(error.worst_row, tolerance) << what;
}

/// Copies float32 rows to rows [begin, ...) of a larger tensor.
void put_rows(const Tensor& from, std::int64_t begin, Tensor& to) {
  const View<const float> rows = from.view_as<float>();
  std::copy_n(rows.data(), rows.size(), to.view_as<float>().at(begin));
}

Tensor random_hidden(const ModelConfig& config, std::int64_t tokens, std::uint64_t seed) {
  Tensor hidden(DType::bfloat16, {tokens, config.hidden_size});
  layer::fill_normal(hidden.view(), seed, 1000, 1.0, 1);
  return hidden;
}

/// What a step of LayerRun reads, on the GPU, with caches like that run's.
class CudaRun {
 public:
  CudaRun(CudaLayer& layer, const LayerCaches& like) : layer_(layer), caches_(like) {
    take(caches_.latent, latent_);
    if (layer.scores()) {
      take(caches_.index, index_);
    }
  }

  /// Takes over the step that `host` has open.
  void open(const LayerRun& host, ConstAnyView hidden) {
    device::cuda::synchronize(stream_);
    hidden_ = DeviceTensor(hidden);
    positions_ = DeviceTensor(host.positions());
    slots_ = DeviceTensor(host.slot_mapping());
    query_start_ = DeviceTensor(host.requests().query_start);
    seq_len_ = DeviceTensor(host.requests().seq_len);
    block_table_ = DeviceTensor(host.requests().block_table);
  }
  [[nodiscard]] View<const bfloat16> hidden() const { return hidden_.view_as<bfloat16>(); }
  [[nodiscard]] View<const std::int32_t> positions() const { return positions_.view_as<std::int32_t>(); }
  [[nodiscard]] View<const std::int64_t> slots() const { return slots_.view_as<std::int64_t>(); }
  [[nodiscard]] Requests requests() const {
    return {query_start_.view_as<std::int32_t>(), seq_len_.view_as<std::int32_t>(),
            block_table_.view_as<std::int32_t>()};
  }
  [[nodiscard]] const LayerCaches& caches() const { return caches_; }
  [[nodiscard]] Stream stream() const { return stream_; }
  /// The index cache's bytes, in memory of the caller.
  [[nodiscard]] CacheView index_cache(std::vector<std::byte>& bytes) const {
    bytes.resize(static_cast<std::size_t>(index_.size_bytes()));
    index_.download(bytes);
    CacheView view = caches_.index;
    view.data = bytes.data();
    return view;
  }

  /// @param kept  the workspace is that of the call before, and the caller's word that it has what was made of `shared`
  [[nodiscard]] Tensor forward(const Plan& plan, const std::optional<Selection>& shared, bool kept = false) {
    const DeviceTensor index = DeviceTensor(shared ? shared->index : View<const std::int32_t>());
    const DeviceTensor count = DeviceTensor(shared ? shared->count : View<const std::int32_t>());
    std::optional<Selection> on_device;
    if (shared) {
      on_device = Selection{index.view_as<std::int32_t>(), count.view_as<std::int32_t>()};
    }
    const DeviceTensor out(DType::bfloat16, {hidden_.view().dim(0), layer_.config().hidden_size});
    if (!kept) {
      workspace_ = DeviceBuffer(std::max<std::int64_t>(plan.workspace_bytes(), 1));
      workspace_.fill(std::byte{0xff});
    }
    const UploadedPlan uploaded(plan);
    layer_.forward(uploaded.get(), hidden(), positions(), caches_, requests(), slots(), on_device,
                   {workspace_.data(), static_cast<std::size_t>(workspace_.size_bytes())}, out.view_as<bfloat16>(),
                   stream_, kept);
    device::cuda::synchronize(stream_);
    return rows_of(out.download());
  }

  /// The same with the layer's own selection, replayed from a graph after the plan is gone.
  [[nodiscard]] Tensor replay(std::optional<Plan> plan) {
    const DeviceTensor out(DType::bfloat16, {hidden_.view().dim(0), layer_.config().hidden_size});
    const DeviceBuffer tables(std::max<std::int64_t>(plan->table_bytes(), 1));
    upload(*plan, {tables.data(), static_cast<std::size_t>(tables.size_bytes())}, stream_);
    device::cuda::synchronize(stream_);
    const CapturedGraph graph([&](Stream stream) {
      layer_.forward(*plan, hidden(), positions(), caches_, requests(), slots(), std::nullopt,
                     {workspace_.data(), static_cast<std::size_t>(workspace_.size_bytes())}, out.view_as<bfloat16>(),
                     stream);
    });
    plan.reset();
    const std::vector<std::int64_t> scribble(1 << 16, -1);  // where the heap has room again
    graph.replay();
    return rows_of(out.download());
  }

 private:
  /// Every byte that nobody wrote is 0xff: NaN in every format.
  static void take(MutableCacheView& view, DeviceBuffer& memory) {
    memory = DeviceBuffer(view.num_pages * view.page_stride);
    memory.fill(std::byte{0xff});
    view.data = memory.data();
  }

  CudaLayer& layer_;
  LayerCaches caches_;
  DeviceBuffer latent_;
  DeviceBuffer index_;
  DeviceBuffer workspace_;
  DeviceTensor hidden_;
  DeviceTensor positions_;
  DeviceTensor slots_;
  DeviceTensor query_start_;
  DeviceTensor seq_len_;
  DeviceTensor block_table_;
  device::cuda::OwnedStream stream_;
};

class CudaLayers : public testing::TestWithParam<Named> {
 protected:
  CudaLayers()
      : host_(GetParam().config, 0, random_layer_weights(GetParam().config, 0, DType::bfloat16, seed_), DType::bfloat16,
              1),
        device_(GetParam().config, 0, host_.weights(), gpu()) {}

  [[nodiscard]] Plan plan(const std::vector<std::int32_t>& query_len, const std::vector<std::int32_t>& seq_len,
                          const SelectionRule& rule, std::optional<Path> force) const {
    Attention attention = device_.attention(CacheFormat::bfloat16);
    attention.rule = rule;
    Limits limits;
    limits.device.cuda = gpu();
    Hints hints;
    hints.force = force;
    return headrace::plan(attention, {query_len, seq_len, true}, limits, hints);
  }

  std::uint64_t seed_ = fresh_seed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
  Layer host_;
  CudaLayer device_;
};

TEST_P(CudaLayers, ProjectionsAreThoseOfTheProcessor) {
  const ModelConfig& config = GetParam().config;
  // The second step is larger, so that memory has to grow; the third is within it.
  for (const std::int64_t tokens : {5, 130, 1, 0}) {
    SCOPED_TRACE(tokens);
    const Tensor hidden = random_hidden(config, tokens, seed_);
    std::vector<std::int32_t> positions;
    for (std::int64_t t = 0; t < tokens; ++t) {
      positions.push_back(static_cast<std::int32_t>(t % 2 == 0 ? t : 100000000 + t));  // too far for float32 angles
    }
    const View<const std::int32_t> view(positions.data(), {tokens});
    const Projected expected = host_.project(hidden.view(), view);
    const DeviceTensor device_hidden(hidden.view());
    const DeviceTensor device_positions(view);
    const device::cuda::OwnedStream stream;
    const CudaProjected actual =
        device_.project(device_hidden.view_as<bfloat16>(), device_positions.view_as<std::int32_t>(), stream);
    device::cuda::synchronize(stream);
    if (tokens == 0) {
      continue;
    }
    expect_close("q", rows_of(actual.q), rows_of(expected.q));
    expect_close("latent", rows_of(actual.latent), rows_of(expected.latent));
    ASSERT_EQ(actual.rope_key.empty(), expected.rope_key.empty());
    if (!expected.rope_key.empty()) {
      expect_close("rope key", rows_of(actual.rope_key), rows_of(expected.rope_key));
    }
    ASSERT_EQ(device_.scores(), host_.scores());
    if (host_.scores()) {
      expect_close("index query", rows_of(actual.index_query), rows_of(expected.index_query));
      expect_close("index weight", rows_of(actual.index_weight), rows_of(expected.index_weight));
      expect_close("index key", rows_of(actual.index_key), rows_of(expected.index_key));
      ASSERT_EQ(actual.index_gate.empty(), expected.index_gate.empty());
      if (!expected.index_gate.empty()) {
        expect_close("index gate", rows_of(actual.index_gate), rows_of(expected.index_gate));
      }
    }
    const CudaProjected keys =
        device_.project_keys(device_hidden.view_as<bfloat16>(), device_positions.view_as<std::int32_t>(), stream);
    device::cuda::synchronize(stream);
    expect_close("latent of context", rows_of(keys.latent), rows_of(expected.latent));
    EXPECT_TRUE(keys.q.empty() && keys.index_query.empty() && keys.index_weight.empty());
  }
}

/// A selection of kTopk keys for each of a request's rows, as another layer would share it.
class SharedSelection {
 public:
  explicit SharedSelection(std::int64_t rows, std::uint64_t seed)
      : index_(DType::int32, {rows, kTopk}), count_(DType::int32, {rows}) {
    selection::Generator generator = selection::parse_generator("drift:0.8");
    generator.topk = kTopk;
    generator.seed = seed;
    generator.fill(0, 0, index_.view_as<std::int32_t>(), count_.view_as<std::int32_t>());
  }
  [[nodiscard]] Selection rows(std::int64_t begin, std::int64_t end) const {
    return {index_.view_as<std::int32_t>().slice(begin, end), count_.view_as<std::int32_t>().slice(begin, end)};
  }

 private:
  Tensor index_;
  Tensor count_;
};

TEST_P(CudaLayers, OutputsAreThoseOfTheProcessorWholeAndInChunks) {
  constexpr std::int64_t kTokens = 200;
  const ModelConfig& config = GetParam().config;
  const Tensor hidden = random_hidden(config, kTokens, seed_);
  const SharedSelection selection(kTokens, seed_);
  for (const bool covered : {false, true}) {
    SCOPED_TRACE(covered ? "every key" : "a shared selection");
    const SelectionRule rule = covered ? SelectionRule::none() : SelectionRule::opaque(kTopk);
    const std::optional<Path> force = covered ? std::nullopt : std::optional(Path::masked_mha);
    Tensor whole;
    for (const std::int64_t chunk : {kTokens, std::int64_t{64}, std::int64_t{23}}) {
      SCOPED_TRACE(testing::Message() << chunk << " tokens a step");
      LayerRun host(host_, CacheFormat::bfloat16, {kTokens});
      CudaRun device(device_, host.caches());
      Tensor result(DType::float32, {kTokens, config.hidden_size});
      Tensor expected(DType::float32, {kTokens, config.hidden_size});
      for (std::int64_t begin = 0; begin < kTokens; begin += chunk) {
        const std::int64_t end = std::min(kTokens, begin + chunk);
        StepOptions options;
        options.rule = rule;
        options.shared = covered ? Selection{} : selection.rows(begin, end);
        host.open({static_cast<std::int32_t>(end - begin)});
        device.open(host, hidden.view().slice(begin, end));
        const Tensor from_host = rows_of(host.forward(hidden.view().slice(begin, end), options));
        const Tensor from_device = device.forward(
            plan({static_cast<std::int32_t>(end - begin)}, {static_cast<std::int32_t>(end)}, rule, force),
            options.shared);
        put_rows(from_host, begin, expected);
        put_rows(from_device, begin, result);
      }
      expect_close("output", result, expected);
      if (chunk == kTokens) {
        whole = std::move(result);
      } else {
        expect_close("output in chunks", result, whole);
      }
    }
  }
}

TEST_P(CudaLayers, ReplaysAfterThePlanIsGone) {
  constexpr std::int32_t kTokens = 150;
  LayerRun host(host_, CacheFormat::bfloat16, {kTokens});
  CudaRun device(device_, host.caches());
  host.open({kTokens});
  const Tensor hidden = random_hidden(GetParam().config, kTokens, seed_);
  device.open(host, hidden.view());
  const Plan made = plan({kTokens}, {kTokens}, device_.attention(CacheFormat::bfloat16).rule, std::nullopt);
  const Tensor eager = device.forward(made, std::nullopt);
  const Tensor replayed = device.replay(made);
  for (std::int64_t i = 0; i < kTokens * GetParam().config.hidden_size; ++i) {
    ASSERT_EQ(eager.view_as<float>().data()[i], replayed.view_as<float>().data()[i]) << "value " << i;
  }
}

TEST_P(CudaLayers, TakesTheWordOnASharedSelectionThatIsKept) {
  constexpr std::int32_t kTokens = 200;
  const Tensor hidden = random_hidden(GetParam().config, kTokens, seed_);
  LayerRun host(host_, CacheFormat::bfloat16, {kTokens});
  host.open({kTokens});
  CudaRun device(device_, host.caches());
  device.open(host, hidden.view());
  const Plan made = plan({kTokens}, {kTokens}, SelectionRule::opaque(kTopk), Path::masked_mha);
  ASSERT_GT(made.kept_bytes(Path::masked_mha), 0);
  const SharedSelection selection(kTokens, seed_);
  const SharedSelection another(kTokens, seed_ + 1);
  const auto values = [](const Tensor& tensor) {
    const View<const float> view = tensor.view_as<float>();
    return std::vector<float>(view.data(), view.data() + view.size());
  };
  const std::vector<float> first = values(device.forward(made, selection.rows(0, kTokens)));
  // Were the other selection read, it would give other rows.
  EXPECT_EQ(values(device.forward(made, another.rows(0, kTokens), true)), first);
  EXPECT_NE(values(device.forward(made, another.rows(0, kTokens))), first);
  EXPECT_THROW(static_cast<void>(device.forward(made, std::nullopt, true)), Error) << "its own selection";
}

TEST_P(CudaLayers, SelectsWhatTheProcessorSelectsFromTheSameKeys) {
  if (!host_.scores()) {
    GTEST_SKIP() << "no indexer";
  }
  constexpr std::int64_t kTokens = 150;
  const ModelConfig& config = GetParam().config;
  const Tensor hidden = random_hidden(config, kTokens, seed_);
  LayerRun host(host_, CacheFormat::bfloat16, {kTokens});
  host.open({kTokens});
  CudaRun device(device_, host.caches());
  device.open(host, hidden.view());
  const CudaProjected projected = device_.project(device.hidden(), device.positions(), device.stream());
  device_.append(projected, device.caches(), CacheFormat::bfloat16, device.requests(), device.slots(), device.stream());
  const Selection selected =
      device_.select(plan({kTokens}, {kTokens}, config.indexer->rule(), Path::masked_mha), projected,
                     device.caches().index, device.requests(), std::int64_t{1} << 20, device.stream());
  device::cuda::synchronize(device.stream());
  ASSERT_FALSE(selected.index.empty());

  std::vector<std::byte> bytes;
  const CacheView index_cache = device.index_cache(bytes);
  const Tensor query = convert(rows_of(projected.index_query), DType::bfloat16);
  const Tensor weight = rows_of(projected.index_weight);
  const ConstAnyView queries(query.data(), DType::bfloat16, 3,
                             {kTokens, config.indexer->num_heads, config.indexer->head_dim},
                             {config.indexer->num_heads * config.indexer->head_dim, config.indexer->head_dim, 1});
  Tensor index(DType::int32, {kTokens, config.indexer->rule().width()});
  Tensor count(DType::int32, {kTokens});
  select(*config.indexer, DType::bfloat16, index_cache, {queries, weight.view_as<float>()}, host.requests(), {},
         index.view_as<std::int32_t>(), count.view_as<std::int32_t>(),
         std::max(std::int64_t{1} << 20, select_workspace_minimum(*config.indexer, kTokens)), 1);

  const Tensor device_index = rows_of(selected.index);
  std::int64_t all = 0;
  std::int64_t found = 0;
  for (std::int64_t t = config.indexer->rule().covered_prefix(); t < kTokens; ++t) {
    for (std::int64_t i = 0; i < count.view_as<std::int32_t>()(t); ++i) {
      const auto key = static_cast<float>(index.view_as<std::int32_t>()(t, i));
      const float* row = device_index.view_as<float>().at(t);
      found += std::find(row, row + device_index.dim(1), key) == row + device_index.dim(1) ? 0 : 1;
      ++all;
    }
  }
  // Only scores that are equal but for the order of a float32 sum may fall otherwise.
  EXPECT_GE(static_cast<double>(found), 0.99 * static_cast<double>(all));
}

INSTANTIATE_TEST_SUITE_P(Configs, CudaLayers,
                         testing::Values(lightning("rope_192_64_256", kGlm, 8, true),
                                         yarn(lightning("rope_128_64_128_yarn", kDeepSeek, 4, false)),
                                         kpool("nope_256_256_kpool", kFlash),
                                         without_indexer(lightning("full_attention", kDeepSeek, 8, false))),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CudaLayerConstruction, NamesTheWeightThatProductsCannotTake) {
  ModelConfig config = lightning("", kGlm, 8, true).config;
  config.q_lora_rank = 100;
  try {
    const CudaLayer layer(config, 0, random_layer_weights(config, 0, DType::bfloat16, 0), gpu());
    FAIL() << "100 is no multiple of 8";
  } catch (const Error& error) {
    EXPECT_EQ(error.argument(), "q_a_proj");
  }
}

}  // namespace
}  // namespace headrace::test
