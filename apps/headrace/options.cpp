// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>

#include "headrace/error.h"
#include "numbers.h"
#include "stated_error.h"

namespace headrace::app {
namespace {

constexpr std::int64_t kMaxTp = 1 << 16;
constexpr std::int64_t kMaxThreads = 1024;
constexpr std::size_t kMaxGpuDigits = 4;
constexpr std::int64_t kMaxRepetitions = 1000;
constexpr std::int64_t kMaxLayer = 1 << 20;
constexpr std::int64_t kMaxChunk = std::numeric_limits<std::int32_t>::max();

constexpr const char* kModelsExamples = R"(Examples:
  headrace models
  headrace models --json)";

constexpr const char* kRouteExamples = R"(Examples:
  headrace route --model glm-5.3-flash --tp 4 --batch 8x2048
  headrace route --model deepseek-v3.2 --batch 2k,4k+2k,64x1+32k --dtype float32
  headrace route --model path/to/checkpoint --batch 16k --force masked_mha --json)";

constexpr const char* kPrefillExamples = R"(Examples:
  headrace prefill --model glm-5.3-flash --tp 4 --batch 2048,1x3000+1096,4x1+8k --check
  headrace prefill --model deepseek-v3.2 --tp 8 --batch 4k --prefill-chunk 1k --selection drift:0.9
  headrace prefill --model path/to/checkpoint --batch 512 --dtype float32 --check all --json)";

constexpr const char* kBenchExamples = R"(Examples:
  headrace bench
  headrace bench --dtype float32 --threads 1 --svg bench.svg
  headrace bench --routing
  headrace bench --json > bench.json)";

constexpr const char* kDoctorExamples = R"(Examples:
  headrace doctor
  headrace doctor --dtype float32 --json)";

constexpr const char* kValidateExamples = R"(Examples:
  headrace validate --recording tests/data/recordings/glm5_next/recording.safetensors
  headrace validate --recording recording.safetensors --json)";

constexpr const char* kVerifyExamples = R"(Examples:
  headrace verify --model tests/data/recordings/glm5_next
  headrace verify --model path/to/checkpoint --recording recording.safetensors --prefill-chunk 64
  headrace verify --model path/to/checkpoint --selection indexer --dtype float32 --json)";

constexpr const char* kMainFooter =
    R"(SPEC is a comma list of [COUNTx]QUERY[+CONTEXT] with k = 1024: 8x2048, 64x1+32k, 2k,4k+2k.
Exit status: 0 all well, 1 a check failed, or a forced path or the device cannot run, 2 misuse or bad input.
"headrace COMMAND --help" tells the options of a command, with examples.)";

Error wrong(std::string argument, std::string expected, std::string_view actual) {
  return Error(std::move(argument), std::move(expected), fmt::format("\"{}\"", actual));
}

DType parse_compute(const std::string& text) {
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    if (text == name_of(dtype)) {
      return dtype;
    }
  }
  throw wrong("--dtype", "bfloat16 or float32", text);
}

std::optional<CacheFormat> parse_cache_format(const std::string& text) {
  if (text == "auto") {
    return std::nullopt;
  }
  for (const CacheFormat format :
       {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8, CacheFormat::fp8_ds_mla}) {
    if (text == name_of(format)) {
      return format;
    }
  }
  throw wrong("--kv-cache-dtype", "auto, float32, bf16, fp8 or fp8_ds_mla", text);
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

SelectionSource parse_selection(const std::string& text) {
  if (text == "indexer") {
    return {SelectionSource::Kind::indexer, text, {}};
  }
  if (text == "recorded") {
    return {SelectionSource::Kind::recorded, text, {}};
  }
  return {SelectionSource::Kind::generator, text,
          named("--selection", [&] { return selection::parse_generator(text); })};
}

/// New tokens, counted as SPEC counts them.
std::int64_t parse_chunk(const std::string& text) {
  const bool kilo = text.ends_with('k');
  const std::int64_t factor = kilo ? 1024 : 1;
  try {
    return factor * parse_integer("", text.substr(0, text.size() - (kilo ? 1 : 0)), 1, kMaxChunk / factor);
  } catch (const Error&) {
    throw wrong("--prefill-chunk", fmt::format("a whole number in [1, {}], k = 1024", kMaxChunk), text);
  }
}

/// One subcommand's options, each added under the same name with the same meaning wherever it applies.
class OptionAdder {
 public:
  OptionAdder(CLI::App& app, Options& options) : app_(app), options_(options) {}

  void json() { app_.add_flag("--json", options_.json, "machine-readable output, schema 1"); }
  void model(const std::string& description) {
    app_.add_option("--model", options_.model, description)->type_name("MODEL")->required();
  }
  void batch() {
    text("--batch", "SPEC", "the step's requests: [COUNTx]QUERY[+CONTEXT],...",
         [&options = options_](const std::string& value) { options.batch = parse_batch_spec(value); })
        ->required();
  }
  CLI::Option* recording(const std::string& description) {
    return app_.add_option("--recording", options_.recording, description)->type_name("FILE");
  }
  void tp() {
    text("--tp", "N", "tensor-parallel ranks; one rank's share is computed (default 1)",
         [&options = options_](const std::string& value) { options.tp = parse_integer("--tp", value, 1, kMaxTp); });
  }
  void dtype(const std::string& default_name) {
    text("--dtype", "TYPE", "compute dtype: bfloat16 or float32 (default " + default_name + ")",
         [&options = options_](const std::string& value) { options.compute = parse_compute(value); });
  }
  void cache_format() {
    text("--kv-cache-dtype", "FORMAT", "auto, float32, bf16, fp8 or fp8_ds_mla (default auto: the compute dtype)",
         [&options = options_](const std::string& value) { options.cache_format = parse_cache_format(value); });
  }
  void cache_scale() {
    text("--kv-cache-scale", "SCALE", "of an fp8 cache: value = e4m3 * SCALE (default 1)",
         [&options = options_](const std::string& value) {
           options.cache_scale = parse_scale("--kv-cache-scale", value);
         });
  }
  void force() {
    text("--force", "PATH", "dense_mha, masked_mha or topk_mqa for every row; exit status 1 where it cannot run",
         [&options = options_](const std::string& value) {
           options.force = named("--force", [&] { return path_from_name(value); });
         });
  }
  void layer(const std::string& default_text) {
    text("--layer", "N", "layer number (default: " + default_text + ")",
         [&options = options_](const std::string& value) {
           options.layer = parse_integer("--layer", value, 0, kMaxLayer);
         });
  }
  void selection(const std::string& description) {
    text("--selection", "SOURCE", description,
         [&options = options_](const std::string& value) { options.selection = parse_selection(value); });
  }
  void prefill_chunk() {
    text("--prefill-chunk", "N", "new tokens of a request that arrive in one step (default: all)",
         [&options = options_](const std::string& value) { options.prefill_chunk = parse_chunk(value); });
  }
  void seed() {
    text("--seed", "N", "of random weights, hidden states, selections and checked rows (default 0)",
         [&options = options_](const std::string& value) {
           options.seed =
               static_cast<std::uint64_t>(parse_integer("--seed", value, 0, std::numeric_limits<std::int64_t>::max()));
         });
  }
  void workspace_limit() {
    text("--workspace-limit", "BYTES",
         "most workspace of attention: 64MiB, 2GiB, plain bytes (default: 256MiB, on a GPU 2GiB, more where a path "
         "needs it)",
         [&options = options_](const std::string& value) {
           options.workspace_limit = parse_bytes("--workspace-limit", value);
         });
  }
  void machine() {
    text("--threads", "N", "default: as many as the machine has", [&options = options_](const std::string& value) {
      options.threads = static_cast<int>(parse_integer("--threads", value, 1, kMaxThreads));
    });
    text("--device", "DEVICE", "cpu (default), or the GPU cuda or cuda:N, which computes in bfloat16",
         [&options = options_](const std::string& value) { options.gpu = parse_device(value); });
  }
  void profile() {
    app_.add_option(
            "--profile", options_.profile,
            "rates that times are predicted from: auto (default: this machine's, measured at first use and kept "
            "in the cache folder), nominal, or a FILE")
        ->type_name("PROFILE");
  }
  void bench() {
    text("--repetitions", "N", "of each measurement, interleaved (default 7)",
         [&options = options_](const std::string& value) {
           options.repetitions = static_cast<int>(parse_integer("--repetitions", value, 1, kMaxRepetitions));
         });
    app_.add_flag("--routing", options_.bench_routing,
                  "instead: 24 listed requests, the routed time beside each path's alone");
    text("--svg", "FILE", "also draw the rates to this file", [&options = options_](const std::string& value) {
      if (value.empty()) {
        throw Error("--svg", "a file's name", "\"\"");
      }
      options.svg = value;
    });
  }
  void check() {
    text("--check", "[all]", "compare 64 rows of each request, or all, with the float64 oracle",
         [&options = options_](const std::string& value) {
           if (!value.empty() && value != "all") {
             throw wrong("--check", "nothing or \"all\"", value);
           }
           options.check = value.empty() ? Check::sample : Check::all;
         })
        ->expected(0, 1);
  }

 private:
  CLI::Option* text(const std::string& name, const std::string& type, const std::string& description,
                    const std::function<void(const std::string&)>& read) {
    return app_.add_option_function<std::string>(name, read, description)->type_name(type);
  }

  CLI::App& app_;
  Options& options_;
};

constexpr const char* kModelText = "a preset (see \"headrace models\"), or a folder with a config.json";

/// Other formats have no scale that could be given.
void require_scaled_format(const CLI::App& command, const Options& options) {
  if (command.count("--kv-cache-scale") > 0 && options.format() != CacheFormat::fp8) {
    throw Error("--kv-cache-scale", "--kv-cache-dtype fp8 beside it", std::string(name_of(options.format())));
  }
}

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description, const char* examples) {
  CLI::App* const command = app.add_subcommand(name, description);
  command->footer(examples);
  return command;
}

void add_models(CLI::App& app, Options& options) {
  CLI::App* const command = add_command(app, "models", "presets and their geometry", kModelsExamples);
  OptionAdder(*command, options).json();
  command->parse_complete_callback([&options] { options.command = Command::models; });
}

void add_route(CLI::App& app, Options& options) {
  CLI::App* const command = add_command(
      app, "route", "the plan of a step, and for each request the reasons against other paths", kRouteExamples);
  OptionAdder add(*command, options);
  add.model(kModelText);
  add.batch();
  add.tp();
  add.dtype("bfloat16");
  add.cache_format();
  add.force();
  add.layer("the first that attends and scores");
  add.selection(
      "indexer (default: the model's rule); uniform, drift:RHO, pooled:P:RHO or local: a caller's own, of which "
      "nothing is known");
  add.workspace_limit();
  add.profile();
  add.machine();
  add.json();
  command->parse_complete_callback([&options] { options.command = Command::route; });
}

void add_prefill(CLI::App& app, Options& options) {
  CLI::App* const command =
      add_command(app, "prefill", "runs a layer over a batch; times by stage, checked on demand", kPrefillExamples);
  OptionAdder add(*command, options);
  add.model(std::string(kModelText) + "; without weights, seeded random ones of the model's shape");
  add.batch();
  add.tp();
  add.dtype("bfloat16");
  add.cache_format();
  add.cache_scale();
  add.force();
  add.layer("the first that attends and scores");
  add.selection("indexer (default), uniform, drift:RHO, pooled:P:RHO or local");
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
  CLI::App* const command = add_command(app, "verify", "compares with recorded outputs, path by path", kVerifyExamples);
  OptionAdder add(*command, options);
  add.model("a checkpoint folder: config.json and weights");
  add.recording("default: recording.safetensors in the model's folder");
  add.dtype("float32, as recordings are; bfloat16 on a GPU");
  add.cache_format();
  add.cache_scale();
  add.force();
  add.layer("every recorded one");
  add.selection("recorded (default) or indexer");
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
      add_command(app, "bench", "each path's rate beside oneDNN's own matrix product", kBenchExamples);
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
  CLI::App* const command = add_command(
      app, "doctor", "this machine, its rates, and what each path can do here: for a bug report", kDoctorExamples);
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

constexpr const char* kCommands = "models, route, prefill, verify, validate, bench, doctor";

/// The option of a command that was given more often than it may be; nullptr where none was.
const CLI::Option* given_twice(const CLI::App& command) {
  const std::vector<const CLI::Option*> options = command.get_options();
  const auto found = std::find_if(options.begin(), options.end(), [](const CLI::Option* option) {
    return option->get_items_expected_max() == 1 && option->count() > 1;
  });
  return found == options.end() ? nullptr : *found;
}

/// The same problem, as Headrace tells it.
[[noreturn]] void throw_usage_error(const CLI::App& app, const CLI::ParseError& problem) {
  const std::vector<const CLI::App*> commands = app.get_subcommands(nullptr);
  const auto named = std::find_if(commands.begin(), commands.end(), [](const CLI::App* one) { return one->parsed(); });
  if (named == commands.end()) {
    const std::vector<std::string> extra = app.remaining();
    const std::string what =
        extra.empty() ? problem.what()
                      : fmt::format("unknown {} \"{}\"", extra[0].starts_with('-') ? "option" : "command", extra[0]);
    throw StatedError("command line", fmt::format("one of {}, --version", kCommands), what,
                      fmt::format("{}; the commands are {} (see \"headrace --help\")", what, kCommands));
  }
  const CLI::App& command = **named;
  const std::string help = fmt::format("see \"headrace {} --help\"", command.get_name());
  if (const CLI::Option* const twice = given_twice(command)) {
    throw StatedError(twice->get_name(), "once", "twice", "given twice; " + help);
  }
  throw StatedError("command line", "options as " + help.substr(4) + " tells them", problem.what(),
                    fmt::format("{}; {}", problem.what(), help));
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
  app.require_subcommand(0, 1);
  bool version = false;
  app.add_flag("--version", version, "version, commit, kernels compiled in");
  app.add_flag("--json", options.json, "machine-readable --version");
  add_models(app, options);
  add_route(app, options);
  add_prefill(app, options);
  add_verify(app, options);
  add_bench(app, options);
  add_doctor(app, options);
  add_validate(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    options.command = Command::help;
    options.help_text = app.help();  // of the command, where one was named
    return options;
  } catch (const CLI::ParseError& problem) {
    throw_usage_error(app, problem);
  }
  if (options.command == Command::help && !version) {
    throw Error("command line", fmt::format("one of {}, --version (see \"headrace --help\")", kCommands), "no command");
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
