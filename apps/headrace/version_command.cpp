// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "commands.h"
#include "device/bf16_products.h"
#include "device/tile_products.h"
#include "headrace/version.h"
#include "output.h"

namespace headrace::app {

namespace {

/// What bfloat16 attention runs on here.
std::string_view bf16_target() { return device::has_bf16_products() ? "AVX512_BF16" : device::tile_products_target(); }

}  // namespace

std::string version_text() { return fmt::format("{} (commit {})", version(), HEADRACE_COMMIT); }

ExitStatus run_version(const Options& options) {
  const std::string_view target = device::tile_products_target();
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
    print_json(document);
    return kAllWell;
  }
  fmt::print("headrace {}\n", version_text());
  fmt::print("kernels: cpu:");
  for (const Path path : kPaths) {
    fmt::print(" {}", name_of(path));
  }
  fmt::print("; products: {}, bfloat16: {}\n", target, bf16_target());
  return kAllWell;
}

}  // namespace headrace::app
