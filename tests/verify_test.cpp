// SPDX-License-Identifier: Apache-2.0
// What verify passes and what it does not: right layers whatever their scores, dtype and cache format are, and faults
// that tests put around the stages, or into model and recording.
#include "verify.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "headrace/recording.h"
#include "support/files.h"
#include "support/random.h"
#include "support/recorded_model.h"

namespace headrace::app {
namespace {

using test::RecordedModelSpec;
using test::TemporaryFolder;
using test::write_recorded_model;

struct Mode {
  DType compute;
  CacheFormat format;
};

const std::vector<Mode> kModes = {{DType::float32, CacheFormat::float32},  {DType::float32, CacheFormat::bfloat16},
                                  {DType::float32, CacheFormat::fp8},      {DType::float32, CacheFormat::fp8_ds_mla},
                                  {DType::bfloat16, CacheFormat::float32}, {DType::bfloat16, CacheFormat::bfloat16},
                                  {DType::bfloat16, CacheFormat::fp8},     {DType::bfloat16, CacheFormat::fp8_ds_mla}};

std::string text_of(const Mode& mode) {
  return fmt::format("{}, cache {}", name_of(mode.compute), name_of(mode.format));
}

Options options_of(const Mode& mode, float cache_scale = 1.0F) {
  Options options;
  options.command = Command::verify;
  options.compute = mode.compute;
  options.cache_format = mode.format;
  options.cache_scale = cache_scale;
  options.selection = {SelectionSource::Kind::recorded, "recorded", {}};
  options.threads = 1;
  return options;
}

/// A recorded model, loaded.
struct Recorded {
  TemporaryFolder folder;
  std::filesystem::path file = folder.path() / "recording.safetensors";
  ModelSource model;
  std::vector<RecordedLayer> layers;

  explicit Recorded(const RecordedModelSpec& spec) {
    write_recorded_model(folder.path(), spec);
    model = find_model(folder.path().string(), 1, Reading::engines);
    layers = load_recording(file);
  }

  [[nodiscard]] LayerResult verify(const Options& options, const StagesMaker& make = make_stages) const {
    return app::verify(model, layers, file, options, make).at(0);
  }
};

/// What a failing test wants to know.
std::string describe(const LayerResult& result) {
  std::string text;
  for (const PathResult& path : result.paths) {
    text += fmt::format("{} recorded {:.2e} {:.2e} attention {:.2e} LSE {:.2e}\n", name_of(path.path),
                        path.recorded.rel_error, path.recorded.max_row_error, path.attention_error, path.lse_error);
  }
  if (result.rounding) {
    const RoundingChecks& r = *result.rounding;
    text += fmt::format("float32 {:.2e} {:.2e} queries {:.2e} latents {:.2e} wrong cache rows {} output {:.2e}\n",
                        r.float32_layer.rel_error, r.float32_layer.max_row_error, r.queries, r.latents,
                        r.wrong_cache_rows, r.output);
  }
  return text;
}

class RightLayers : public testing::TestWithParam<const char*> {};

TEST_P(RightLayers, PassWhateverTheirScoresAre) {
  const std::uint64_t seed = test::fresh_seed();
  test::Random random(seed);
  for (const double score_stddev : {0.5, 2.0, 8.0}) {
    SCOPED_TRACE(fmt::format("seed {}, scores of {}", seed, score_stddev));
    RecordedModelSpec spec;
    spec.model_type = GetParam();
    spec.score_stddev = score_stddev;
    spec.seed = random.bits();
    const Recorded recorded(spec);
    for (const Mode& mode : kModes) {
      const float scale = random.chance(0.5) ? 1.0F : 0.01F;
      const LayerResult result = recorded.verify(options_of(mode, scale));
      EXPECT_TRUE(result.pass()) << text_of(mode) << "\n" << describe(result);
    }
  }
}

TEST_P(RightLayers, PassInBfloat16WhereTheyWereRecordedInIt) {
  const std::uint64_t seed = test::fresh_seed();
  test::Random random(seed);
  for (const double score_stddev : {0.5, 2.0, 8.0}) {
    SCOPED_TRACE(fmt::format("seed {}, scores of {}", seed, score_stddev));
    RecordedModelSpec spec;
    spec.model_type = GetParam();
    spec.score_stddev = score_stddev;
    spec.in_bfloat16 = true;
    spec.seed = random.bits();
    const Recorded recorded(spec);
    for (const CacheFormat format : {CacheFormat::bfloat16, CacheFormat::fp8, CacheFormat::fp8_ds_mla}) {
      const Mode mode{DType::bfloat16, format};
      const LayerResult result = recorded.verify(options_of(mode, 0.01F));
      EXPECT_TRUE(result.recorded_in_bfloat16);
      EXPECT_TRUE(result.pass()) << text_of(mode) << "\n" << describe(result);
    }
    const LayerResult in_float32 = recorded.verify(options_of({DType::float32, CacheFormat::float32}));
    EXPECT_TRUE(in_float32.recorded_in_bfloat16);
    EXPECT_FALSE(in_float32.pass());
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, RightLayers, testing::Values("deepseek_v32", "glm_moe_dsa", "glm5_next"));

// ---- faults in the stages
// ---------------------------------------------------------------------------------------------

/// What a fault does to the stages of a layer; each member that is set takes effect where its name says.
struct Fault {
  std::string name;
  std::function<void(const AppendedStep&, const Attention&, const Step&)> after_append;  // may write to the views
  std::function<void(View<std::int32_t>)> in_selection;                                  // of a copy
  std::function<void(const ConstAnyView&)> after_attend;
  std::function<void(const ConstAnyView&)> after_output;
  float cache_scale_factor = 1.0F;   // between what append and attend take, and what is said
  std::vector<CacheFormat> formats;  // that it can be made in; empty: all
};

/// Stages with a fault.
class FaultyStages final : public Stages {
 public:
  FaultyStages(std::unique_ptr<Stages> inner, const Fault& fault, float cache_scale, CacheFormat format)
      : inner_(std::move(inner)), fault_(fault), cache_scale_(cache_scale), format_(format) {}

  [[nodiscard]] const ModelConfig& config() const noexcept override { return inner_->config(); }
  [[nodiscard]] bool scores() const noexcept override { return inner_->scores(); }
  [[nodiscard]] Attention attention(CacheFormat format) const override { return inner_->attention(format); }
  void begin(const PageTable& table, CacheFormat format, std::int64_t workspace_bytes) override {
    inner_->begin(table, format, workspace_bytes);
  }
  void time(double& total_ms, const std::function<void()>& work) override { inner_->time(total_ms, work); }
  void open(const Step& step, ConstAnyView hidden) override {
    step_ = &step;
    inner_->open(step, hidden);
  }
  void project(bool scoring) override { inner_->project(scoring); }
  void project_keys() override { inner_->project_keys(); }
  void append() override {
    inner_->append();
    if (fault_.after_append) {
      fault_.after_append(inner_->appended(), attention(format_), *step_);
    }
  }
  void select(const Plan& plan) override { inner_->select(plan); }
  void select_all() override { inner_->select_all(); }
  void use(const Selection& selection) override {
    said_ = selection;
    Selection used = selection;
    if (fault_.in_selection) {
      used_ = Tensor(DType::int32, {selection.index.dim(0), selection.index.dim(1)});
      std::copy_n(selection.index.data(), selection.index.size(), used_.view_as<std::int32_t>().data());
      fault_.in_selection(used_.view_as<std::int32_t>());
      used.index = std::as_const(used_).view_as<std::int32_t>();
    }
    inner_->use(used);
  }
  void share(const Selection& selection) override { inner_->share(selection); }
  [[nodiscard]] Selection selection() const override { return said_; }
  void prepare(const Plan& plan, bool with_lse) override { inner_->prepare(plan, with_lse); }
  void attend(const Plan& plan) override {
    inner_->attend(plan);
    if (fault_.after_attend) {
      fault_.after_attend(inner_->attended().out);
    }
  }
  void output() override {
    inner_->output();
    if (fault_.after_output) {
      fault_.after_output(inner_->out());
    }
  }
  void close() override { inner_->close(); }
  [[nodiscard]] AppendedStep appended() override {
    AppendedStep result = inner_->appended();
    result.cache.scale = cache_scale_;
    return result;
  }
  [[nodiscard]] AttendedStep attended() override {
    AttendedStep result = inner_->attended();
    result.inputs.selection = said_;
    result.inputs.cache.scale = cache_scale_;
    return result;
  }
  [[nodiscard]] ScoredStep scored() override { return inner_->scored(); }
  [[nodiscard]] ConstAnyView out() override { return inner_->out(); }

 private:
  std::unique_ptr<Stages> inner_;
  const Fault& fault_;
  float cache_scale_;
  CacheFormat format_;
  const Step* step_ = nullptr;
  Selection said_;
  Tensor used_;
};

StagesMaker with(const Fault& fault) {
  return [&fault](const ModelSource& model, std::int64_t layer, const Options& options, const Device& device) {
    Options faulty = options;
    faulty.cache_scale *= fault.cache_scale_factor;
    return std::make_unique<FaultyStages>(make_stages(model, layer, faulty, device), fault, options.cache_scale,
                                          options.format());
  };
}

/// The processor's stages hand out views on their own memory, which faults write to.
template <class T>
T* writable(const void* data) {
  return static_cast<T*>(const_cast<void*>(data));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

std::byte* bytes_of(const CacheView& cache, std::int64_t slot) { return writable<std::byte>(cache.row(slot)); }

std::int64_t value_bytes(CacheFormat format) {
  return format == CacheFormat::float32 ? 4 : format == CacheFormat::bfloat16 ? 2 : 1;
}

template <class Change>
void change_values(const ConstAnyView& view, std::int64_t count, const Change& change) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (view.dtype() == DType::float32) {
      float& value = writable<float>(view.data())[i];
      value = change(i, value);
    } else {
      bfloat16& value = writable<bfloat16>(view.data())[i];
      value = bfloat16(change(i, static_cast<float>(value)));
    }
  }
}

/// e4m3 codes with an exponent one too high, where there is one.
void raise_codes(std::byte* codes, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto code = std::to_integer<unsigned>(codes[i]);
    if ((code & 0x78U) != 0U && (code & 0x78U) < 0x70U) {
      codes[i] = static_cast<std::byte>(code + 8U);
    }
  }
}

const std::vector<CacheFormat> kCoded = {CacheFormat::fp8, CacheFormat::fp8_ds_mla};

float value_of(const ConstAnyView& matrix, std::int64_t row, std::int64_t column) {
  const std::int64_t offset = row * matrix.stride(0) + column * matrix.stride(1);
  return matrix.dtype() == DType::float32 ? static_cast<const float*>(matrix.data())[offset]
                                          : static_cast<float>(static_cast<const bfloat16*>(matrix.data())[offset]);
}

/// The code of the number nearest to 0 among the two that a value lies between.
std::byte truncated_code(float value) {
  float8_e4m3 code;
  for (code.bits = 126; code.bits > 0 && static_cast<float>(code) > std::abs(value);) {
    --code.bits;
  }
  return static_cast<std::byte>(code.bits + (value < 0.0F ? 128 : 0));
}

/// Stores the latents of a step again.
/// @param scales  what a row's scales are made of its groups' largest magnitudes; unset: as the format has it
void store_again(const AppendedStep& appended, const Attention& attention, const Step& step,
                 const std::function<void(std::array<float, 4>&)>& scales,
                 const std::function<std::byte(float)>& code) {
  for (std::int64_t t = 0; t < step.tokens(); ++t) {
    std::byte* const row = bytes_of(appended.cache, step.slots()(t));
    std::array<float, 4> scale{};
    scale.fill(appended.cache.scale);
    if (attention.format == CacheFormat::fp8_ds_mla) {
      std::memcpy(scale.data(), row + 512, sizeof scale);
      if (scales) {
        scales(scale);
        std::memcpy(row + 512, scale.data(), sizeof scale);
      }
    }
    for (std::int64_t i = 0; i < attention.geometry.kv_lora_rank; ++i) {
      row[i] = code(value_of(appended.latent, t, i) / scale.at(static_cast<std::size_t>(i / 128)));
    }
  }
}

std::byte rounded_code(float value) { return static_cast<std::byte>(float8_e4m3(value).bits); }

std::vector<Fault> stage_faults() {
  std::vector<Fault> faults;
  const auto add = [&](const std::string& name) -> Fault& {
    faults.emplace_back().name = name;
    return faults.back();
  };
  Fault& binade = add("e4m3 codes one binade too high");
  binade.formats = kCoded;
  binade.after_append = [](const AppendedStep& appended, const Attention& attention, const Step& step) {
    for (std::int64_t t = 0; t < step.tokens(); ++t) {
      raise_codes(bytes_of(appended.cache, step.slots()(t)), attention.geometry.kv_lora_rank);
    }
  };
  const auto stored = [&](const std::string& name, const std::vector<CacheFormat>& formats,
                          const std::function<void(std::array<float, 4>&)>& scales,
                          const std::function<std::byte(float)>& code) {
    Fault& fault = add(name);
    fault.formats = formats;
    fault.after_append = [scales, code](const AppendedStep& appended, const Attention& attention, const Step& step) {
      store_again(appended, attention, step, scales, code);
    };
  };
  const std::vector<CacheFormat> grouped{CacheFormat::fp8_ds_mla};
  stored("e4m3 truncated", kCoded, {}, truncated_code);
  stored(
      "one scale for the row", grouped,
      [](std::array<float, 4>& scale) { scale.fill(*std::max_element(scale.begin(), scale.end())); }, rounded_code);
  stored(
      "scales that are powers of two", grouped,
      [](std::array<float, 4>& scale) {
        for (float& one : scale) {
          one = std::exp2(std::ceil(std::log2(one)));
        }
      },
      rounded_code);
  stored(
      "scales of the largest magnitude over 240", grouped,
      [](std::array<float, 4>& scale) {
        for (float& one : scale) {
          one *= 448.0F / 240.0F;
        }
      },
      rounded_code);
  add("halves of the latent swapped").after_append = [](const AppendedStep& appended, const Attention& attention,
                                                        const Step& step) {
    const std::int64_t half = attention.geometry.kv_lora_rank / 2 * value_bytes(attention.format);
    for (std::int64_t t = 0; t < step.tokens(); ++t) {
      std::byte* const row = bytes_of(appended.cache, step.slots()(t));
      std::swap_ranges(row, row + half, row + half);
    }
  };
  add("one token not stored").after_append = [](const AppendedStep& appended, const Attention& attention,
                                                const Step& step) {
    const std::int64_t bytes = attention.geometry.kv_lora_rank * value_bytes(attention.format);
    std::fill_n(bytes_of(appended.cache, step.slots()(step.tokens() / 2)), bytes, std::byte{0});
  };
  Fault& group = add("one scale in four of fp8_ds_mla a quarter too large");
  group.formats = {CacheFormat::fp8_ds_mla};
  group.after_append = [](const AppendedStep& appended, const Attention&, const Step& step) {
    for (std::int64_t t = 0; t < step.tokens(); ++t) {
      std::byte* const at = bytes_of(appended.cache, step.slots()(t)) + 512 + 8;
      float scale = 0.0F;
      std::memcpy(&scale, at, sizeof scale);
      scale *= 1.25F;
      std::memcpy(at, &scale, sizeof scale);
    }
  };
  Fault& scale = add("another scale than was said");
  scale.formats = {CacheFormat::fp8};
  scale.cache_scale_factor = 1.25F;
  add("queries a twentieth too large").after_append = [](const AppendedStep& appended, const Attention&, const Step&) {
    change_values(appended.q, appended.q.dim(0) * appended.q.stride(0),
                  [](std::int64_t, float value) { return 1.05F * value; });
  };
  add("no rope on the last head's queries of one token").after_append =
      [](const AppendedStep& appended, const Attention& attention, const Step& step) {
        const Geometry& g = attention.geometry;
        const std::int64_t head = (step.tokens() - 1) * g.num_heads + g.num_heads - 1;
        const std::int64_t begin = head * g.qk_head_dim() + (g.qk_rope_head_dim > 0 ? g.qk_nope_head_dim : 0);
        const std::int64_t end = (head + 1) * g.qk_head_dim();
        change_values(appended.q, appended.q.dim(0) * appended.q.stride(0), [&](std::int64_t i, float value) {
          return i >= begin && i < end && (i - begin) % 2 == 0 ? -value : value;
        });
      };
  add("a key dropped from each row").in_selection = [](View<std::int32_t> index) {
    for (std::int64_t row = 0; row < index.dim(0); ++row) {
      index(row, row % std::min(row + 1, index.dim(1))) = -1;
    }
  };
  add("a key of the row before in each row").in_selection = [](View<std::int32_t> index) {
    for (std::int64_t row = 40; row < index.dim(0); ++row) {
      index(row, 3) = static_cast<std::int32_t>((index(row, 3) + 7) % row);
    }
  };
  add("one row of the output lost").after_output = [](const ConstAnyView& out) {
    const std::int64_t row = out.dim(0) - 1;
    change_values(out, out.dim(0) * out.stride(0),
                  [&](std::int64_t i, float value) { return i / out.stride(0) == row ? 0.0F : value; });
  };
  add("the output a twentieth too large").after_output = [](const ConstAnyView& out) {
    change_values(out, out.dim(0) * out.stride(0), [](std::int64_t, float value) { return 1.05F * value; });
  };
  return faults;
}

class Faults : public testing::TestWithParam<const char*> {};

TEST_P(Faults, InTheStagesFailInEveryDtypeAndFormat) {
  const std::uint64_t seed = test::fresh_seed();
  test::Random random(seed);
  SCOPED_TRACE(fmt::format("seed {}", seed));
  RecordedModelSpec spec;
  spec.model_type = GetParam();
  spec.score_stddev = 3.0;
  spec.seed = random.bits();
  const Recorded recorded(spec);
  for (const Fault& fault : stage_faults()) {
    for (const Mode& mode : kModes) {
      if (!fault.formats.empty() &&
          std::find(fault.formats.begin(), fault.formats.end(), mode.format) == fault.formats.end()) {
        continue;
      }
      Options options = options_of(mode, 0.01F);
      options.force = Path::topk_mqa;
      const LayerResult result = recorded.verify(options, with(fault));
      EXPECT_FALSE(result.pass()) << fault.name << ", " << text_of(mode) << "\n" << describe(result);
    }
  }
}

TEST(FaultsInOneRow, OfManyFailWhereverTheRowIs) {
  const std::uint64_t seed = test::fresh_seed();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  RecordedModelSpec spec;
  spec.tokens = 1024;
  spec.seed = seed;
  const Recorded recorded(spec);
  const auto garble = [](const ConstAnyView& out, std::int64_t row) {
    change_values(out, out.dim(0) * out.stride(0),
                  [&](std::int64_t i, float value) { return i / out.stride(0) == row ? -3.0F * value + 7.0F : value; });
  };
  for (const Mode& mode : {Mode{DType::float32, CacheFormat::float32}, Mode{DType::float32, CacheFormat::fp8_ds_mla},
                           Mode{DType::bfloat16, CacheFormat::bfloat16}, Mode{DType::bfloat16, CacheFormat::fp8}}) {
    Options options = options_of(mode, 0.01F);
    options.force = Path::topk_mqa;
    options.threads = 2;
    const bool pass = recorded.verify(options).pass();
    EXPECT_TRUE(pass) << text_of(mode);
    std::int64_t row = 5 + static_cast<std::int64_t>(seed % 101);
    for (const bool in_attention : {false, true}) {
      for (int i = 0; i < 3; ++i, row = (row + 337) % spec.tokens) {
        Fault fault;
        const auto garbled = [&](const ConstAnyView& out) { garble(out, row); };
        (in_attention ? fault.after_attend : fault.after_output) = garbled;
        EXPECT_FALSE(recorded.verify(options, with(fault)).pass()) << text_of(mode) << ", row " << row;
      }
    }
  }
}

TEST(Scales, ThatHoldTooLittleOfTheLayerFail) {
  RecordedModelSpec spec;
  spec.seed = test::fresh_seed();
  SCOPED_TRACE(fmt::format("seed {}", spec.seed));
  const Recorded recorded(spec);
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const auto& [scale, pass] : {std::pair{1e-9F, false}, std::pair{3e-3F, false}, std::pair{0.01F, true},
                                      std::pair{10.0F, true}, std::pair{1e3F, false}, std::pair{1e6F, false}}) {
      const LayerResult result = recorded.verify(options_of({compute, CacheFormat::fp8}, scale));
      EXPECT_EQ(result.pass(), pass) << scale << "\n" << describe(result);
      EXPECT_EQ(result.rounding->scale->pass(), pass) << scale;
    }
  }
}

// ---- faults in the model and the recording
// ----------------------------------------------------------------------------

struct ModelFault {
  std::string name;
  std::function<void(ModelConfig&)> in_model;
  std::function<void(RecordedLayer&)> in_recording;
};

std::vector<ModelFault> model_faults() {
  return {{"another theta", [](ModelConfig& config) { config.rope.theta *= 2.0; }, {}},
          {"another epsilon", [](ModelConfig& config) { config.kv_a_norm_epsilon = 1e-2; }, {}},
          {"another softmax scale", [](ModelConfig& config) { config.softmax_scale *= 1.1; }, {}},
          {"an output a twentieth too large",
           {},
           [](RecordedLayer& layer) {
             change_values(std::as_const(layer.output).view(), layer.output.dim(0) * layer.output.dim(1),
                           [](std::int64_t, float value) { return 1.05F * value; });
           }},
          {"two rows of the output exchanged",
           {},
           [](RecordedLayer& layer) {
             const View<float> output = layer.output.view_as<float>();
             std::swap_ranges(output.at(50), output.at(51), output.at(70));
           }},
          {"another key in a row of the selection", {}, [](RecordedLayer& layer) {
             std::int32_t& key = layer.topk_indices.view_as<std::int32_t>()(90, 5);
             key = (key + 11) % 90;
           }}};
}

TEST_P(Faults, InModelAndRecordingFailInEveryDtypeAndFormat) {
  const std::uint64_t seed = test::fresh_seed();
  test::Random random(seed);
  SCOPED_TRACE(fmt::format("seed {}", seed));
  RecordedModelSpec spec;
  spec.model_type = GetParam();
  spec.score_stddev = 2.0;
  spec.seed = random.bits();
  for (const ModelFault& fault : model_faults()) {
    SCOPED_TRACE(fault.name);
    Recorded recorded(spec);
    if (fault.in_model) {
      if (fault.name == "another theta" && recorded.model.config.geometry.qk_rope_head_dim == 0) {
        continue;
      }
      fault.in_model(recorded.model.config);
    } else {
      fault.in_recording(recorded.layers.front());
    }
    for (const Mode& mode : kModes) {
      const LayerResult result = recorded.verify(options_of(mode, 0.01F));
      EXPECT_FALSE(result.pass()) << fault.name << ", " << text_of(mode) << "\n" << describe(result);
    }
  }
}

TEST_P(Faults, FailAlsoInRecordingsMadeInBfloat16) {
  const std::uint64_t seed = test::fresh_seed();
  test::Random random(seed);
  SCOPED_TRACE(fmt::format("seed {}", seed));
  RecordedModelSpec spec;
  spec.model_type = GetParam();
  spec.in_bfloat16 = true;
  spec.score_stddev = 1.0 + static_cast<double>(random.below(3));
  spec.seed = random.bits();
  Recorded recorded(spec);
  recorded.model.config.softmax_scale *= 1.25;
  for (const CacheFormat format : {CacheFormat::bfloat16, CacheFormat::fp8}) {
    const LayerResult result = recorded.verify(options_of({DType::bfloat16, format}, 0.01F));
    EXPECT_FALSE(result.pass()) << describe(result);
  }
}

/// What rounding may take has a limit, however large scores are: it is measured on a layer that may be wrong.
TEST_P(Faults, FailWhereScoresAreHuge) {
  const std::uint64_t seed = test::fresh_seed();
  test::Random random(seed);
  SCOPED_TRACE(fmt::format("seed {}", seed));
  for (const double score_stddev : {1e2, 1e4, 1e6}) {
    RecordedModelSpec spec;
    spec.model_type = GetParam();
    spec.score_stddev = score_stddev;
    spec.seed = random.bits();
    for (const bool in_bfloat16 : {false, true}) {
      spec.in_bfloat16 = in_bfloat16;
      Recorded recorded(spec);
      const View<float> output = recorded.layers.front().output.view_as<float>();
      std::swap_ranges(output.at(50), output.at(70), output.at(70));
      for (const Mode& mode : kModes) {
        const LayerResult result = recorded.verify(options_of(mode, 0.01F));
        EXPECT_FALSE(result.pass()) << score_stddev << ", " << text_of(mode) << "\n" << describe(result);
        for (const PathResult& path : result.paths) {
          if (path.recorded.tolerance) {
            EXPECT_LE(path.recorded.tolerance->rel_error, 1e-3);
            EXPECT_LE(path.recorded.tolerance->max_row_error, 1.01e-3);
          }
        }
        if (result.rounding) {
          const bool wide = in_bfloat16 && mode.compute == DType::bfloat16;
          EXPECT_LE(result.rounding->float32_layer.tolerance->max_row_error, wide ? 0.1 : 1.01e-3);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Faults, testing::Values("deepseek_v32", "glm_moe_dsa", "glm5_next"));

}  // namespace
}  // namespace headrace::app
