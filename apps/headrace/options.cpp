// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>

#include "core/dtype_names.h"
#include "headrace/error.h"
#include "help_format.h"
#include "numbers.h"
#include "output.h"
#include "usage_error.h"

namespace headrace::app {
namespace {

constexpr std::int64_t kMaxTp = 1 << 16;
constexpr std::size_t kMaxGpuDigits = 4;
constexpr std::int64_t kMaxRepetitions = 1000;
constexpr std::int64_t kMaxLayer = 1 << 20;
constexpr std::int64_t kMaxChunk = std::numeric_limits<std::int32_t>::max();

constexpr const char* kModelsExamples = R"(Examples:
  headrace models
  headrace models --json)";

constexpr const char* kRouteExamples = R"(Examples:
  headrace route --model glm-5.3-flash --tp 4 --batch 8x2048
  headrace route --model deepseek-v3.2 --batch 2k,4k+2k,64x1+32k --dtype fp32
  headrace route --model path/to/checkpoint --batch 16k --force masked_mha)";

constexpr const char* kPrefillExamples = R"(Examples:
  headrace prefill --model glm-5.3-flash --tp 4 --batch 2k,4x1+8k --check
  headrace prefill --model glm-5 --tp 8 --batch 4k --prefill-chunk 1k
  headrace prefill --model path/to/checkpoint --batch 512 --check all --json)";

constexpr const char* kBenchExamples = R"(Examples:
  headrace bench
  headrace bench --dtype float32 --threads 1 --svg bench.svg
  headrace bench --routing
  headrace bench --json > bench.json)";

constexpr const char* kDoctorExamples = R"(Examples:
  headrace doctor
  headrace doctor --dtype float32 --json)";

constexpr const char* kValidateExamples = R"(Examples:
  headrace validate --recording path/to/recording.safetensors
  headrace validate --recording recording.safetensors --json)";

constexpr const char* kVerifyExamples = R"(Examples:
  headrace verify --model tests/data/recordings/glm5_next
  headrace verify --model path/to/checkpoint --recording recording.safetensors
  headrace verify --model path/to/checkpoint --selection indexer --json)";

constexpr const char* kMainFooter = R"(MODEL is a preset (see "headrace models"), a folder with a config.json, or such
a file, which has no weights.
SPEC is a comma list of [COUNTx]QUERY[+CONTEXT], in tokens: COUNT requests of
QUERY new tokens each, after CONTEXT earlier ones. k is 1024, and m is 1024k.
  8x2048     eight prompts of 2048 tokens
  64x1+32k   64 requests with one new token each, after 32768 earlier ones
  2k,4k+2k   a prompt of 2048 tokens, and 4096 new tokens after 2048

Exit status: 0 all is well; 1 a check failed, or a forced path or the device
cannot run; 2 misuse or bad input.
"headrace COMMAND --help" lists the options of a command, with examples.)";

Error wrong(std::string argument, std::string expected, std::string_view actual) {
  return Error(std::move(argument), std::move(expected), fmt::format("\"{}\"", actual));
}

DType parse_compute(const std::string& text) {
  const std::optional<DType> compute = compute_from_name(text);
  if (!compute) {
    throw wrong("--dtype", std::string(kComputeNames), text);
  }
  return *compute;
}

std::optional<CacheFormat> parse_cache_format(const std::string& text) {
  if (text == "auto") {
    return std::nullopt;
  }
  const std::optional<CacheFormat> format = cache_format_from_name(text);
  if (!format) {
    throw wrong("--kv-cache-dtype", fmt::format("auto, {}", kCacheFormatNames), text);
  }
  return format;
}

/// The number of a GPU, or nothing for the processor.
std::optional<int> parse_device(const std::string& text) {
  constexpr std::string_view kCuda = "cuda";
  if (text == "cpu") {
    return std::nullopt;
  }
  if (text == kCuda) {
    return 0;
  }
  const std::string number = text.starts_with("cuda:") ? text.substr(kCuda.size() + 1) : "";
  if (number.empty() || number.size() > kMaxGpuDigits ||
      !std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    throw wrong("--device", "cpu, cuda or cuda:N", text);
  }
  return std::stoi(number);
}

/// @param sources  those that the command takes, as an error lists them
SelectionSource parse_selection(const std::string& text, std::string_view sources) {
  if (text == "indexer") {
    return {SelectionSource::Kind::indexer, text, {}};
  }
  if (text == "recorded") {
    return {SelectionSource::Kind::recorded, text, {}};
  }
  const std::string_view name = std::string_view(text).substr(0, text.find(':'));
  const bool generator = name == "uniform" || name == "drift" || name == "pooled" || name == "local";
  if (!generator || sources.find(name) == std::string_view::npos) {
    throw wrong("--selection", std::string(sources), text);
  }
  return {SelectionSource::Kind::generator, text,
          named("--selection", [&] { return selection::parse_generator(text); })};
}

/// New tokens, counted as SPEC counts them.
std::int64_t parse_chunk(const std::string& text) {
  const std::int64_t chunk = read_count(text, kMaxChunk).value_or(0);
  if (chunk < 1) {
    throw wrong("--prefill-chunk", fmt::format("a whole number in [1, {}], k = 1024, m = 1024k", kMaxChunk), text);
  }
  return chunk;
}

/// One subcommand's options, each added under the same name with the same meaning wherever it applies.
class OptionAdder {
 public:
  OptionAdder(CLI::App& app, Options& options) : app_(app), options_(options) {}

  void json() { app_.add_flag("--json", options_.json, "write one JSON document"); }
  void model(const std::string& description) {
    app_.add_option("--model", options_.model, description)->type_name("MODEL")->required();
  }
  void reading() {
    text("--reading", "WHOSE", "where references read a config.json otherwise: engines (default) or transformers",
         [&options = options_](const std::string& value) {
           options.reading = named("--reading", [&] { return reading_from_name(value); });
           options.reading_given = true;
         });
  }
  void batch() {
    text("--batch", "SPEC", "the step's requests, as \"headrace --help\" tells: 8x2048, or 2k,64x1+32k",
         [&options = options_](const std::string& value) { options.batch = parse_batch_spec(value); })
        ->required();
  }
  CLI::Option* recording(const std::string& description) {
    return text("--recording", "FILE", description,
                [&options = options_](const std::string& value) { options.recording = file("--recording", value); });
  }
  void tp() {
    text("--tp", "N", "tensor-parallel ranks, of which one is computed; default 1",
         [&options = options_](const std::string& value) { options.tp = parse_integer("--tp", value, 1, kMaxTp); });
  }
  void dtype(const std::string& default_name) {
    text("--dtype", "TYPE", "what is computed in: bfloat16 (bf16) or float32 (fp32); default " + default_name,
         [&options = options_](const std::string& value) { options.compute = parse_compute(value); });
  }
  void cache_format() {
    text("--kv-cache-dtype", "FORMAT",
         fmt::format("the cache's format: {}; default auto, which is that of --dtype", kCacheFormatNames),
         [&options = options_](const std::string& value) { options.cache_format = parse_cache_format(value); });
  }
  void cache_scale() {
    text("--kv-cache-scale", "SCALE", "of an fp8 cache: value = e4m3 * SCALE (default 1)",
         [&options = options_](const std::string& value) {
           options.cache_scale = parse_scale("--kv-cache-scale", value);
         });
  }
  void force() {
    text("--force", "PATH",
         "one path for every row: dense_mha, masked_mha or topk_mqa; exit status 1 where it cannot run",
         [&options = options_](const std::string& value) {
           options.force = named("--force", [&] { return path_from_name(value); });
         });
  }
  void layer(const std::string& default_text) {
    text("--layer", "N", "the layer's number, from 0; default: " + default_text,
         [&options = options_](const std::string& value) {
           options.layer = parse_integer("--layer", value, 0, kMaxLayer);
         });
  }
  void selection(std::string_view sources, const std::string& description) {
    text("--selection", "SOURCE", description, [&options = options_, sources](const std::string& value) {
      options.selection = parse_selection(value, sources);
    });
  }
  void prefill_chunk() {
    text("--prefill-chunk", "N", "new tokens of a request in one step, such as 512 or 4k; default: all of them",
         [&options = options_](const std::string& value) { options.prefill_chunk = parse_chunk(value); });
  }
  void seed() {
    text("--seed", "N", "of everything that is drawn at random; default 0",
         [&options = options_](const std::string& value) {
           options.seed =
               static_cast<std::uint64_t>(parse_integer("--seed", value, 0, std::numeric_limits<std::int64_t>::max()));
         });
  }
  void workspace_limit() {
    text("--workspace-limit", "BYTES",
         "most memory for attention's partial results: 64MiB (or 64M) is 64 * 2^20 bytes, 64MB is 64 * 10^6; default "
         "256MiB, on a GPU 2GiB, and more where a path needs it",
         [&options = options_](const std::string& value) {
           options.workspace_limit = parse_bytes("--workspace-limit", value);
         });
  }
  void machine() {
    text("--threads", "N", "of the processor; default: as many as the machine has",
         [&options = options_](const std::string& value) {
           options.threads = static_cast<int>(parse_integer("--threads", value, 1, kMaxThreads));
         });
    text("--device", "DEVICE", "cpu, which is the default, or a GPU, cuda or cuda:N, which computes in bfloat16",
         [&options = options_](const std::string& value) { options.gpu = parse_device(value); });
  }
  void profile() {
    app_.add_option(
            "--profile", options_.profile,
            "the rates that times are predicted from. auto, the default: this machine's, measured at first use, which "
            "takes 10 to 40 s, and kept in the cache folder. nominal: assumed ones. Or a kept FILE")
        ->type_name("PROFILE");
  }
  void bench() {
    text("--repetitions", "N", "of each measurement; default 7", [&options = options_](const std::string& value) {
      options.repetitions = static_cast<int>(parse_integer("--repetitions", value, 1, kMaxRepetitions));
    });
    app_.add_flag("--routing", options_.bench_routing,
                  "instead: 24 requests, the routed time beside that of each path alone");
    text("--svg", "FILE", "also draw the rates to this file",
         [&options = options_](const std::string& value) { options.svg = file("--svg", value); });
  }
  void check() {
    text("--check", "[all]", "compare 64 rows of each request, or all, with a float64 oracle",
         [&options = options_](const std::string& value) {
           if (value != kNoValue && value != "all") {
             throw wrong("--check", "nothing or \"all\"", value);
           }
           options.check = value == kNoValue ? Check::sample : Check::all;
         })
        ->expected(0, 1)
        ->default_str(kNoValue);
  }

 private:
  /// What the parser gives for an option that no value follows, where an empty value is another thing.
  static constexpr const char* kNoValue = "no value";

  static std::string file(const char* name, const std::string& value) {
    if (value.empty()) {
      throw wrong(name, "a file's name", value);
    }
    return value;
  }

  CLI::Option* text(const std::string& name, const std::string& type, const std::string& description,
                    const std::function<void(const std::string&)>& read) {
    return app_.add_option_function<std::string>(name, read, description)->type_name(type);
  }

  CLI::App& app_;
  Options& options_;
};

constexpr const char* kModelText = "a preset (see \"headrace models\"), a folder with a config.json, or such a file";

/// Other formats have no scale that could be given.
void require_scaled_format(const CLI::App& command, const Options& options) {
  if (command.count("--kv-cache-scale") > 0 && options.format() != CacheFormat::fp8) {
    throw Error("--kv-cache-scale", "--kv-cache-dtype fp8 beside it", std::string(name_of(options.format())));
  }
}

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description, const char* examples) {
  CLI::App* const command = app.add_subcommand(name, description);
  command->footer(examples);
  command->group("Commands");
  return command;
}

void add_models(CLI::App& app, Options& options) {
  CLI::App* const command = add_command(app, "models", "lists the presets and their geometry", kModelsExamples);
  OptionAdder add(*command, options);
  add.reading();
  add.json();
  command->parse_complete_callback([&options] { options.command = Command::models; });
}

void add_route(CLI::App& app, Options& options) {
  CLI::App* const command =
      add_command(app, "route", "tells which path each request of a step takes, and why", kRouteExamples);
  OptionAdder add(*command, options);
  add.model(kModelText);
  add.reading();
  add.batch();
  add.tp();
  add.dtype("bfloat16");
  add.cache_format();
  add.force();
  add.layer("the first that attends and scores");
  add.selection(
      kStepSelections,
      "whose keys each query attends to: indexer, the default, follows the model's rule; of uniform, drift:RHO, "
      "pooled:P:RHO and local nothing is known");
  add.workspace_limit();
  add.profile();
  add.machine();
  add.json();
  command->parse_complete_callback([&options] { options.command = Command::route; });
}

void add_prefill(CLI::App& app, Options& options) {
  CLI::App* const command = add_command(
      app, "prefill", "runs a layer over a batch: the time of each stage, checked on demand", kPrefillExamples);
  OptionAdder add(*command, options);
  add.model(std::string(kModelText) + ". Where it has no weights, random ones of its shape are drawn");
  add.reading();
  add.batch();
  add.tp();
  add.dtype("bfloat16");
  add.cache_format();
  add.cache_scale();
  add.force();
  add.layer("the first that attends and scores");
  add.selection(
      kStepSelections,
      "the keys each query attends to: indexer, the default, or drawn ones: uniform, drift:RHO, pooled:P:RHO or local");
  add.prefill_chunk();
  add.check();
  add.seed();
  add.workspace_limit();
  add.profile();
  add.machine();
  add.json();
  command->parse_complete_callback([&options, command] {
    options.command = Command::prefill;
    require_scaled_format(*command, options);
  });
}

void add_verify(CLI::App& app, Options& options) {
  CLI::App* const command =
      add_command(app, "verify", "compares each path with what another implementation recorded", kVerifyExamples);
  OptionAdder add(*command, options);
  add.model("a checkpoint folder: config.json and weights");
  add.reading();
  add.recording("the recorded outputs; default: recording.safetensors in the model's folder");
  add.dtype("float32, as recordings are; bfloat16 on a GPU");
  add.cache_format();
  add.cache_scale();
  add.force();
  add.layer("every recorded one");
  add.selection(kRecordedSelections, "the keys each query attends to: recorded, the default, or indexer");
  add.prefill_chunk();
  add.seed();
  add.workspace_limit();
  add.machine();
  add.json();
  command->parse_complete_callback([&options, command] {
    options.command = Command::verify;
    if (command->count("--dtype") == 0) {
      options.compute = options.gpu ? DType::bfloat16 : DType::float32;
    }
    if (command->count("--selection") == 0) {
      options.selection = {SelectionSource::Kind::recorded, "recorded", {}};
    }
    require_scaled_format(*command, options);
  });
}

void add_bench(CLI::App& app, Options& options) {
  CLI::App* const command =
      add_command(app, "bench", "measures each path's rate, beside that of oneDNN's matrix product", kBenchExamples);
  OptionAdder add(*command, options);
  add.dtype("bfloat16");
  add.bench();
  add.profile();
  add.machine();
  add.json();
  command->parse_complete_callback([&options, command] {
    options.command = Command::bench;
    if (!options.bench_routing && command->count("--profile") > 0) {
      throw Error("--profile", "--routing beside it: nothing else is predicted", "no --routing");
    }
    for (const char* other : {"--svg", "--repetitions"}) {
      if (options.bench_routing && command->count(other) > 0) {
        throw Error("--routing", fmt::format("no {} beside it, which is of the other measurements", other), other);
      }
    }
  });
}

void add_doctor(CLI::App& app, Options& options) {
  CLI::App* const command =
      add_command(app, "doctor", "tells what this machine can do, for a bug report", kDoctorExamples);
  OptionAdder add(*command, options);
  add.dtype("bfloat16");
  add.profile();
  add.machine();
  add.json();
  command->parse_complete_callback([&options] { options.command = Command::doctor; });
}

void add_validate(CLI::App& app, Options& options) {
  CLI::App* const command =
      add_command(app, "validate", "counts what is wrong in a recording's selections and values", kValidateExamples);
  OptionAdder add(*command, options);
  add.recording("a recording.safetensors")->required();
  add.json();
  command->parse_complete_callback([&options] { options.command = Command::validate; });
}

}  // namespace

bool asks_for_json(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json") {
      return true;
    }
  }
  return false;
}

Options parse_command_line(int argc, const char* const* argv) {
  Options options;
  CLI::App app("Prefill of sparse multi-head latent attention, exact and routed", "headrace");
  app.footer(kMainFooter);
  app.formatter(std::make_shared<HelpFormat>(output_width()));
  app.set_help_flag("-h,--help", "this text");
  app.require_subcommand(0, 1);
  bool version = false;
  app.add_flag("--version", version, "the version, the commit and the kernels that are compiled in");
  app.add_flag("--json", options.json, "write one JSON document");
  add_models(app, options);
  add_route(app, options);
  add_prefill(app, options);
  add_verify(app, options);
  add_validate(app, options);
  add_bench(app, options);
  add_doctor(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    options.command = Command::help;
    options.help_text = app.help();  // of the command, where one was named
    return options;
  } catch (const CLI::ParseError& problem) {
    throw_usage_error(app, problem);
  }
  refuse_repeated(app);
  if (options.command == Command::help && !version) {
    throw Error("command line",
                fmt::format("one of {}, --version (see \"headrace --help\")", fmt::join(command_names(app), ", ")),
                "no command");
  }
  if (version && options.command != Command::help) {
    throw Error("--version", "no command beside it", fmt::format("\"{}\"", app.get_subcommands().front()->get_name()));
  }
  if (version) {
    options.command = Command::version;
  }
  if (options.gpu && options.compute != DType::bfloat16) {
    throw Error("--dtype", fmt::format("bfloat16, the compute dtype of {}", device_text(options)),
                std::string(name_of(options.compute)));
  }
  return options;
}

std::string cache_scale_text(const Options& options) {
  return fmt::format("fp8 scale {} (--kv-cache-scale)", options.cache_scale);
}

std::string device_text(const Options& options) { return options.gpu ? fmt::format("cuda:{}", *options.gpu) : "cpu"; }

}  // namespace headrace::app
