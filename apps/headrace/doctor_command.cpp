// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>
#include <hwy/highway.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/tile_arithmetic.h"
#include "commands.h"
#include "cuda_kernels.h"
#include "device/parallel.h"
#include "device/tile_products.h"
#include "headrace/cuda.h"
#include "headrace/error.h"
#include "headrace/plan.h"
#include "headrace/profile.h"
#include "memory.h"
#include "numbers.h"
#include "output.h"
#include "table.h"
#include "target.h"

namespace headrace::app {
namespace {

using Lines = std::vector<std::pair<std::string, std::string>>;

constexpr DType kComputes[] = {DType::bfloat16, DType::float32};
constexpr CacheFormat kFormats[] = {CacheFormat::float32, CacheFormat::bfloat16, CacheFormat::fp8,
                                    CacheFormat::fp8_ds_mla};

Lines dependencies() {
  const dnnl_version_t* onednn = dnnl_version();
  return {{"oneDNN", fmt::format("{}.{}.{}", onednn->major, onednn->minor, onednn->patch)},
          {"Highway", fmt::format("{}.{}", HWY_MAJOR, HWY_MINOR)},
          {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
          {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                        NLOHMANN_JSON_VERSION_PATCH)},
          {"CLI11", CLI11_VERSION},
          {"compiler", __VERSION__}};
}

Lines instruction_sets() {
  return {{"float32 tiles", device::tile_products_target()},
          {"bfloat16 tiles",
           attention::uses_pairs(DType::bfloat16) ? "AVX512_BF16" : "none; bfloat16 attention runs on float32 tiles"}};
}

/// The cache formats a path reads on a device in a compute dtype, as it says itself; with R 512, so that every format
/// could hold it.
std::string formats_of(Path path, DType compute, const Device& device) {
  std::string formats;
  for (const CacheFormat format : kFormats) {
    Attention attention;
    attention.geometry = {
        .num_heads = 1, .kv_lora_rank = 512, .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128};
    attention.rule = SelectionRule::none();
    attention.scale = 1.0;
    attention.compute = compute;
    attention.format = format;
    if (unmet_requirements(path, attention, 0, 1, true, device).empty()) {
      formats += fmt::format("{}{}", formats.empty() ? "" : " ", name_of(format));
    }
  }
  return formats;
}

const char* requirement_of(Path path) {
  switch (path) {
    case Path::dense_mha:
      return "a selection that is known to cover every row";
    case Path::masked_mha:
    case Path::topk_mqa:
      break;
  }
  return "nothing";
}

Lines profile_lines(const Profile& profile, const std::string& where) {
  return {{"measured on", profile.name},
          {"kept in", where},
          {"products", fmt::format("{:.0f} GFLOP/s a thread", profile.product_gflops)},
          {"MHA", fmt::format("{:.0f} GFLOP/s a thread", profile.mha_gflops)},
          {"MQA", fmt::format("{:.0f} GFLOP/s a thread", profile.mqa_gflops)},
          {"gathering", fmt::format("{:.1f} million latents/s a thread", profile.gather_mkeys)},
          {"masks", fmt::format("{:.2f} billion entries/s a thread", profile.mask_gkeys)},
          {"bandwidth", fmt::format("{:.1f} GB/s", profile.bandwidth_gbytes)}};
}

/// Every GPU of this machine that can be opened, or the one line that says why there is none.
struct Gpus {
  std::vector<Device> devices;
  Lines lines;
};

Gpus find_gpus() {
  Gpus gpus;
  const std::optional<CudaKernels> kernels = cuda_kernels();
  for (int ordinal = 0; ordinal < CudaDevice::count(); ++ordinal) {
    try {
      Device device;
      device.cuda = std::make_shared<CudaDevice>(ordinal);
      const std::string& unmet = device.cuda->unmet();
      gpus.lines.emplace_back(name_of(device), unmet.empty() ? device.cuda->name() : "not used: " + unmet);
      if (unmet.empty()) {
        gpus.devices.push_back(std::move(device));
      }
    } catch (const Error& error) {
      gpus.lines.emplace_back(fmt::format("cuda:{}", ordinal), fmt::format("cannot be opened: {}", error.what()));
    }
  }
  if (gpus.lines.empty()) {
    gpus.lines.emplace_back("GPU", kernels ? "none, or without its driver" : "not used: built without CUDA");
  }
  if (kernels) {
    gpus.lines.emplace_back("GPU kernels", fmt::format("{}; head dims nope+rope/v: {}", kernels->architecture,
                                                       fmt::join(kernels->head_dims, ", ")));
  }
  return gpus;
}

/// What each path can do on a GPU, by cache formats, or why it can do nothing.
Lines gpu_path_lines(const Device& device) {
  Lines lines;
  for (const Path path : kPaths) {
    const std::string formats = formats_of(path, DType::bfloat16, device);
    lines.emplace_back(name_of(path), formats.empty() ? "no kernel" : formats);
  }
  return lines;
}

/// Where the rates that are shown are kept.
std::string kept_where(const Options& options, const Profile& profile) {
  if (options.profile == "nominal") {
    return "nowhere: the library's own assumptions";
  }
  if (options.profile != "auto") {
    return options.profile;
  }
  if (options.gpu) {
    return "nowhere: those of a GPU are not measured here";
  }
  if (profile.name != machine_name()) {
    return "nowhere: this machine's could not be measured, so these are the library's own assumptions";
  }
  const std::filesystem::path kept = profile_path(options.compute, options.threads);
  return kept.empty() ? "nowhere: neither XDG_CACHE_HOME nor HOME is set" : kept.string();
}

Json object_of(const Lines& lines) {
  Json object = Json::object();
  for (const auto& [name, value] : lines) {
    object[name] = value;
  }
  return object;
}

void print_lines(const char* title, const Lines& lines) {
  fmt::print("\n{}\n", title);
  for (const auto& [name, value] : lines) {
    constexpr std::size_t kValues = 18;
    fmt::print("  {:16}{}", name, wrapped(value, output_width(), kValues));
  }
}

}  // namespace

ExitStatus run_doctor(const Options& options) {
  const Target target = chosen_target(options);
  const Gpus gpus = find_gpus();
  Lines machine = {{"processor", machine_name()},
                   {"threads", fmt::format("{}", device::thread_count(options.threads))},
                   {"free memory", format_bytes(available_memory())}};
  machine.insert(machine.end(), gpus.lines.begin(), gpus.lines.end());
  const Lines profile_text = profile_lines(target.profile, kept_where(options, target.profile));
  if (options.json) {
    Json document = new_document();
    document["version"] = version_text();
    document["machine"] = object_of(machine);
    document["instruction_sets"] = object_of(instruction_sets());
    document["dependencies"] = object_of(dependencies());
    document["profile"] = object_of(profile_text);
    for (const Path path : kPaths) {
      Json entry = {{"path", name_of(path)}, {"needs", requirement_of(path)}};
      for (const DType compute : kComputes) {
        entry["cache_formats"][std::string(name_of(compute))] = formats_of(path, compute, {});
      }
      document["paths"].push_back(std::move(entry));
    }
    document["gpus"] = Json::array();
    for (const Device& gpu : gpus.devices) {
      document["gpus"].push_back(
          {{"device", name_of(gpu)}, {"name", gpu.cuda->name()}, {"cache_formats", object_of(gpu_path_lines(gpu))}});
    }
    print_json(document);
    return kAllWell;
  }
  fmt::print("headrace {}\n", version_text());
  print_lines("Machine", machine);
  print_lines("Instruction sets", instruction_sets());
  print_lines("Dependencies", dependencies());
  print_lines(fmt::format("Rates in {}", name_of(options.compute)).c_str(), profile_text);
  fmt::print("\nPaths on the processor\n");
  Table table({{"  path"}, {"compute"}, {"cache formats"}, {"needs", Table::Align::text}});
  for (const Path path : kPaths) {
    for (const DType compute : kComputes) {
      table.add({fmt::format("  {}", name_of(path)), std::string(name_of(compute)), formats_of(path, compute, {}),
                 requirement_of(path)});
    }
  }
  fmt::print("{}", table.to_string(output_width()));
  for (const Device& gpu : gpus.devices) {
    print_lines(fmt::format("Paths on {}, and their cache formats in bfloat16", name_of(gpu)).c_str(),
                gpu_path_lines(gpu));
  }
  return kAllWell;
}

}  // namespace headrace::app
