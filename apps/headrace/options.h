// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "batch_spec.h"
#include "headrace/cache.h"
#include "headrace/dtype.h"
#include "headrace/error.h"
#include "headrace/model.h"
#include "headrace/plan.h"
#include "selection/generators.h"

namespace headrace::app {

enum class Command { help, version, models, route, prefill, verify, bench, doctor, validate };

/// Where a step's selection comes from.
struct SelectionSource {
  enum class Kind { indexer, recorded, generator };
  Kind kind = Kind::indexer;
  std::string text = "indexer";
  selection::Generator generator;  ///< without its topk and seed
};

/// What --selection takes, as errors list it: of a command that runs or plans a step, and of verify.
inline constexpr std::string_view kStepSelections = "indexer, uniform, drift:RHO, pooled:P:RHO or local";
inline constexpr std::string_view kRecordedSelections = "recorded or indexer";

enum class Check { none, sample, all };

/// What a command line says, with the defaults of its command filled in.
struct Options {
  Command command = Command::help;
  std::string help_text;  ///< of `help`
  bool json = false;

  std::string model;
  Reading reading = Reading::engines;  ///< of the model's configuration
  bool reading_given = false;          ///< by --reading; otherwise verify may find out which one a recording had
  std::vector<RequestSpec> batch;
  std::filesystem::path recording;  ///< empty: the model folder's own
  std::int64_t tp = 1;
  DType compute = DType::bfloat16;
  std::optional<CacheFormat> cache_format;  ///< absent: that of the compute dtype
  float cache_scale = 1.0F;                 ///< of an fp8 cache: value = e4m3 * scale
  std::optional<Path> force;
  std::optional<std::int64_t> layer;
  SelectionSource selection;
  std::int64_t prefill_chunk = 0;  ///< 0: whole prompts
  std::uint64_t seed = 0;
  std::int64_t workspace_limit = std::numeric_limits<std::int64_t>::max();
  int threads = 0;         ///< 0: as many as the machine has
  std::optional<int> gpu;  ///< of --device cuda:N; absent: the processor
  Check check = Check::none;
  std::string profile = "auto";  ///< auto, nominal, or a file
  int repetitions = 7;           ///< of each measurement of `bench`
  bool bench_routing = false;    ///< measure the router's choices instead of rates
  std::filesystem::path svg;     ///< where `bench` draws; empty: nowhere

  [[nodiscard]] CacheFormat format() const noexcept {
    return cache_format.value_or(compute == DType::float32 ? CacheFormat::float32 : CacheFormat::bfloat16);
  }
};

/// The device of the options as --device spells it: "cpu", "cuda:0".
[[nodiscard]] std::string device_text(const Options& options);

/// "fp8 scale 0.25 (--kv-cache-scale)", for who would not know that there is one.
[[nodiscard]] std::string cache_scale_text(const Options& options);

/// Runs `work`; an Error of it names `argument`, as the command line's user knows it.
template <class Work>
auto named(const char* argument, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    error.throw_for(argument);
  }
}

/// @throws Error for misuse
[[nodiscard]] Options parse_command_line(int argc, const char* const* argv);

/// Whether a command line asks for JSON; also for one that parse_command_line refuses.
[[nodiscard]] bool asks_for_json(int argc, const char* const* argv);

}  // namespace headrace::app
