// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <optional>
#include <utility>

#include "commands.h"
#include "cuda_kernels.h"
#include "device/bf16_products.h"
#include "device/tile_products.h"
#include "headrace/version.h"
#include "output.h"
#include "table.h"

namespace headrace::app {

namespace {

/// What bfloat16 attention runs on here.
std::string_view bf16_target() { return device::has_bf16_products() ? "AVX512_BF16" : device::tile_products_target(); }

}  // namespace

std::string version_text() { return fmt::format("{} (commit {})", version(), HEADRACE_COMMIT); }

ExitStatus run_version(const Options& options) {
  const std::string_view target = device::tile_products_target();
  const std::optional<CudaKernels> gpu = cuda_kernels();
  if (options.json) {
    Json document = new_document();
    document["version"] = version();
    document["commit"] = HEADRACE_COMMIT;
    Json paths = Json::array();
    for (const Path path : kPaths) {
      paths.push_back(name_of(path));
    }
    document["kernels"] =
        Json::array({{{"device", "cpu"}, {"paths", paths}, {"products", target}, {"bf16_products", bf16_target()}}});
    if (gpu) {
      Json gpu_paths = Json::array();
      for (const Path path : gpu->paths) {
        gpu_paths.push_back(name_of(path));
      }
      document["kernels"].push_back({{"device", "cuda"},
                                     {"architecture", gpu->architecture},
                                     {"paths", std::move(gpu_paths)},
                                     {"head_dims", gpu->head_dims}});
    }
    print_json(document);
    return kAllWell;
  }
  fmt::print("headrace {}\n", version_text());
  std::string cpu = "kernels: cpu:";
  for (const Path path : kPaths) {
    cpu += fmt::format(" {}", name_of(path));
  }
  fmt::print("{}",
             wrapped(fmt::format("{}; products: {}, bfloat16: {}", cpu, target, bf16_target()), output_width(), 2));
  if (gpu) {
    std::string cuda = fmt::format("kernels: cuda {}:", gpu->architecture);
    for (const Path path : gpu->paths) {
      cuda += fmt::format(" {}", name_of(path));
    }
    fmt::print("{}", wrapped(fmt::format("{}; head dims nope+rope/v: {}", cuda, fmt::join(gpu->head_dims, ", ")),
                             output_width(), 2));
  }
  return kAllWell;
}

}  // namespace headrace::app
