// SPDX-License-Identifier: Apache-2.0
//
// A layer's step, from hidden states to hidden states, whatever the device holds in positions, lengths, block table and
// slots: outputs and caches are written where they may be, and sound requests get what they always get.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "device/cuda/stream.h"
#include "headrace/cuda_layer.h"
#include "hostile_kit.h"
#include "layer/random.h"
#include "support/layer_run.h"
#include "support/random.h"
#include "uploaded_plan.h"

namespace headrace::test {
namespace {

ModelConfig small_config(bool kpool) {
  ModelConfig config;
  config.model_type = "deepseek_v32";
  config.hidden_size = 256;
  config.num_layers = 1;
  config.geometry = {3, 128, 192, 64, 256};
  config.q_lora_rank = 96;
  config.rope.dim = 64;
  config.softmax_scale = 1.0 / 16.0;
  config.layer_kinds = {LayerKind::sparse_attention};
  config.shares_selection = {false};
  config.q_a_norm_epsilon = 1e-5;
  config.kv_a_norm_epsilon = 1e-6;
  IndexerGeometry indexer;
  indexer.num_heads = 8;
  indexer.head_dim = 128;
  indexer.topk = 32;
  indexer.rope_dim = 64;
  indexer.kpool = kpool;
  indexer.pool = kpool ? 4 : 1;
  indexer.tail = kpool;
  config.indexer = indexer;
  return config;
}

/// Tokens of each request, all of them new.
const std::vector<std::int32_t> kTokens = {80, 60, 20};

class HostileLayer : public testing::TestWithParam<bool> {
 protected:
  static constexpr std::byte kNan{0xff};

  struct GuardedCache {
    MutableCacheView view;
    GuardedMemory memory;

    explicit GuardedCache(const MutableCacheView& like)
        : view(like), memory(like.num_pages * like.page_stride, Guard::wide, kNan) {
      view.data = memory.data();
    }
  };

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  std::uint64_t seed_ = fresh_seed();
  Random random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << "HEADRACE_TEST_SEED=" << seed_};
};

TEST_P(HostileLayer, ForwardWritesAndReadsNothingOutside) {
  const ModelConfig config = small_config(GetParam());
  const Layer host(config, 0, random_layer_weights(config, 0, DType::bfloat16, seed_), DType::bfloat16, 1);
  const auto gpu = std::make_shared<CudaDevice>(0);
  CudaLayer layer(config, 0, host.weights(), gpu);
  LayerRun step(host, CacheFormat::bfloat16, {kTokens.begin(), kTokens.end()});
  step.open(kTokens);
  const std::int64_t tokens = step.tokens();
  Limits limits;
  limits.device.cuda = gpu;
  const UploadedPlan made(plan(layer.attention(CacheFormat::bfloat16), {kTokens, kTokens, true}, limits));

  Tensor hidden(DType::bfloat16, {tokens, config.hidden_size});
  layer::fill_normal(hidden.view(), seed_, 1000, 1.0, 1);
  const GuardedCache latent(step.caches().latent);
  const GuardedCache index(step.caches().index);
  const GuardedMemory workspace(made.get().workspace_bytes(), Guard::wide, kNan);
  const GuardedOutput<bfloat16> out(2, {tokens, config.hidden_size, 0, 0}, {config.hidden_size + 8, 1, 0, 0});
  const device::cuda::OwnedStream stream;

  for (int draw = 0; draw < hostile_draws(); ++draw) {
    SCOPED_TRACE(testing::Message() << "draw " << draw);
    const Guard guard = random_guard(random_);
    const GuardedInput<bfloat16> hidden_input(View<const bfloat16>(hidden.view_as<bfloat16>()), guard, kNan);
    const GuardedInput<std::int32_t> positions(step.positions(), guard, std::byte{0});
    const GuardedInput<std::int64_t> slots(step.slot_mapping(), guard, std::byte{0});
    const GuardedRequests requests(step.requests(), guard);
    const auto run = [&] {
      latent.memory.refill();
      index.memory.refill();
      workspace.refill();
      out.refill();
      layer.forward(made.get(), hidden_input.view(), positions.view(), {latent.view, index.view}, requests.get(),
                    slots.view(), std::nullopt, {workspace.data(), at(workspace.size_bytes())}, out.view(), stream);
      device::cuda::synchronize(stream);
    };
    run();
    const Lengths sound(step.requests());
    std::vector<std::vector<std::byte>> expected;
    for (std::size_t b = 0; b < kTokens.size(); ++b) {
      expected.push_back(out.rows(sound.query_start[b], sound.query_start[b + 1]));
    }

    Lengths lengths = sound;
    const std::int64_t which = random_.below(8);
    if ((which & 1) != 0) {
      lengths.spoil_query_start(random_, tokens);
    }
    if ((which & 2) != 0) {
      lengths.spoil_seq_len(random_, kTokens[0]);
    }
    if ((which & 4) != 0) {
      lengths.spoil_block_table(random_, latent.view.num_pages);
    }
    std::vector<std::int32_t> hostile_positions(step.positions().data(), step.positions().data() + tokens);
    const std::vector<std::int64_t> sound_slots(step.slot_mapping().data(), step.slot_mapping().data() + tokens);
    std::vector<std::int64_t> hostile_slots = sound_slots;
    std::set<std::int64_t> lost;  // slots that have not what they had
    std::vector<bool> touched(kTokens.size());
    for (std::int64_t n = random_.below(4); n > 0; --n) {
      const std::int64_t token = random_.below(tokens);
      hostile_slots[at(token)] = hostile<std::int64_t>(random_, {latent.view.num_slots(), std::int64_t{1} << 32});
      lost.insert({hostile_slots[at(token)], sound_slots[at(token)]});
      const std::int64_t turned = random_.below(tokens);
      hostile_positions[at(turned)] = hostile<std::int32_t>(random_, {tokens});
      touched[at(std::ranges::upper_bound(sound.query_start, turned) - sound.query_start.begin() - 1)] = true;
    }
    requests.put(lengths);
    positions.put(hostile_positions);
    slots.put(hostile_slots);
    run();
    ASSERT_EQ(out.damage(tokens), std::nullopt);
    ASSERT_EQ(workspace.damage([](std::int64_t) { return true; }), std::nullopt);
    ASSERT_EQ(latent.memory.damage([](std::int64_t) { return true; }), std::nullopt);
    ASSERT_EQ(index.memory.damage([](std::int64_t) { return true; }), std::nullopt);
    for (std::size_t b = 0; b < kTokens.size() && lengths.ascends(); ++b) {
      const auto own = sound_slots.begin();
      const bool met = std::any_of(own + sound.query_start[b], own + sound.query_start[b + 1],
                                   [&](std::int64_t slot) { return lost.contains(slot); });
      if (!met && !touched[b] && lengths.is_sound(sound, b)) {
        ASSERT_EQ(out.rows(sound.query_start[b], sound.query_start[b + 1]), expected[b]) << "request " << b;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, HostileLayer, testing::Bool(),
                         [](const auto& kpool) { return std::string(kpool.param ? "kpool" : "lightning"); });

}  // namespace
}  // namespace headrace::test
