// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "commands.h"
#include "device/tile_products.h"
#include "output.h"

namespace headrace::app {

ExitStatus run_version(const Options& options) {
  const std::string_view target = device::tile_products_target();
  if (options.json) {
    Json document = new_document();
    document["version"] = HEADRACE_VERSION;
    document["commit"] = HEADRACE_COMMIT;
    Json paths = Json::array();
    for (const Path path : kPaths) {
      paths.push_back(name_of(path));
    }
    document["kernels"] = Json::array({{{"device", "cpu"}, {"paths", paths}, {"products", target}}});
    print_json(document);
    return kAllWell;
  }
  fmt::print("headrace {} (commit {})\n", HEADRACE_VERSION, HEADRACE_COMMIT);
  fmt::print("kernels: cpu:");
  for (const Path path : kPaths) {
    fmt::print(" {}", name_of(path));
  }
  fmt::print("; products: {}\n", target);
  return kAllWell;
}

}  // namespace headrace::app
