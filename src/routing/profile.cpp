// SPDX-License-Identifier: Apache-2.0
#include "headrace/profile.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "attention/tile_arithmetic.h"
#include "core/dtype_names.h"
#include "device/parallel.h"
#include "device/tile_products.h"
#include "headrace/error.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace headrace {
namespace {

/// Raised whenever rates mean something else or the kernels have changed, so that old files are measured anew.
constexpr int kSchema = 2;
/// A rate below says that the file is broken, and would make predictions overflow.
constexpr double kLeastRate = 1e-6;

struct Rate {
  const char* name;
  double Profile::*value;
};
constexpr Rate kRates[] = {
    {"product_gflops", &Profile::product_gflops}, {"mha_gflops", &Profile::mha_gflops},
    {"mqa_gflops", &Profile::mqa_gflops},         {"gather_mkeys", &Profile::gather_mkeys},
    {"mask_gkeys", &Profile::mask_gkeys},         {"bandwidth_gbytes", &Profile::bandwidth_gbytes}};

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) {
      const std::size_t colon = line.find(':');
      return colon == std::string::npos ? line : line.substr(line.find_first_not_of(' ', colon + 1));
    }
  }
  return "unknown processor";
}

DType compute_of(const io::Json& value, const std::string& name) {
  const std::optional<DType> compute =
      value.is_string() ? compute_from_name(value.get<std::string>()) : std::optional<DType>();
  if (!compute) {
    throw Error(name + ": compute", std::string(kComputeNames), io::describe(value));
  }
  return *compute;
}

int threads_of(const io::Json& value, const std::string& name) {
  if (!value.is_number_integer() || value < 1 || value > std::numeric_limits<int>::max()) {
    throw Error(name + ": threads", "a whole number of at least 1", io::describe(value));
  }
  return value.get<int>();
}

/// A field that every profile has.
const io::Json& field_of(const io::Json& document, const std::string& name, const char* field) {
  const auto found = document.find(field);
  if (found == document.end()) {
    throw Error(fmt::format("{}: {}", name, field), "a value", "nothing: the profile lacks this field");
  }
  return *found;
}

std::string name_in(const io::Json& value, const std::string& file) {
  if (!value.is_string()) {
    throw Error(file + ": name", "a string", io::describe(value));
  }
  return value.get<std::string>();
}

double rate_of(const io::Json& value, const std::string& name, const char* rate) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= kLeastRate) {
    throw Error(fmt::format("{}: {}", name, rate), fmt::format("a finite number above {}", kLeastRate),
                io::describe(value));
  }
  return value.get<double>();
}

}  // namespace

Profile Profile::nominal_cpu(DType compute) {
  // A current server core with 256-bit or wider vectors. bfloat16 is not assumed to be faster than float32, because
  // many CPUs have no instructions for it.
  Profile profile;
  profile.name = "nominal";
  profile.compute = compute;
  profile.product_gflops = 80.0;
  profile.mha_gflops = 60.0;
  profile.mqa_gflops = 60.0;
  profile.gather_mkeys = 6.0;
  profile.mask_gkeys = 0.4;
  profile.bandwidth_gbytes = 10.0;
  return profile;
}

Profile Profile::nominal_cuda() {
  Profile profile;
  profile.name = "nominal sm_90";
  profile.compute = DType::bfloat16;
  profile.product_gflops = 600e3;
  profile.mha_gflops = 550e3;
  profile.mqa_gflops = 600e3;
  profile.gather_mkeys = 1500.0;
  profile.mask_gkeys = 500.0;
  profile.bandwidth_gbytes = 4000.0;
  return profile;
}

void Profile::validate() const {
  for (const Rate& rate : kRates) {
    const double value = this->*rate.value;
    if (!std::isfinite(value) || value <= 0.0) {
      throw Error(fmt::format("profile.{}", rate.name), "finite and > 0", fmt::format("{}", value));
    }
  }
}

std::string machine_name() {
  return fmt::format("{}, {}{}", processor_name(), device::tile_products_target(),
                     attention::uses_pairs(DType::bfloat16) ? " with AVX512_BF16" : "");
}

std::filesystem::path profile_path(DType compute, int threads) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  const std::filesystem::path cache = variable("XDG_CACHE_HOME");
  const std::filesystem::path home = variable("HOME");
  if (cache.empty() && home.empty()) {
    return {};
  }
  return (cache.empty() ? home / ".cache" : cache) / "headrace" /
         fmt::format("profile-v{}-cpu-{}-{}.json", kSchema, name_of(compute), device::thread_count(threads));
}

void save_profile(const Profile& profile, const std::filesystem::path& file) {
  nlohmann::ordered_json document;
  document["schema"] = kSchema;
  document["name"] = profile.name;
  document["compute"] = name_of(profile.compute);
  document["threads"] = profile.threads;
  for (const Rate& rate : kRates) {
    document[rate.name] = profile.*rate.value;
  }
  std::error_code failed;
  if (file.has_parent_path()) {
    std::filesystem::create_directories(file.parent_path(), failed);
  }
  std::filesystem::path part = file;
  part += ".part";
  bool written = false;
  {
    std::ofstream stream(part);
    stream << document.dump(1) << '\n';
    stream.flush();
    written = stream.good();
  }
  if (written) {
    std::filesystem::rename(part, file, failed);
  }
  if (!written || failed) {
    std::filesystem::remove(part, failed);
    throw Error(file.string(), "a file that can be written", "one that cannot");
  }
}

Profile load_profile(const std::filesystem::path& file) {
  const std::string name = file.string();
  const io::MappedFile mapped(file);
  const io::Json document = io::parse_json(mapped.text(), name);
  if (!document.is_object()) {
    throw Error(name, "a profile, which is a JSON object", io::describe(document));
  }
  if (const io::Json& schema = field_of(document, name, "schema"); schema != kSchema) {
    throw Error(name + ": schema", std::to_string(kSchema), io::describe(schema));
  }
  Profile profile;
  profile.name = name_in(field_of(document, name, "name"), name);
  profile.compute = compute_of(field_of(document, name, "compute"), name);
  profile.threads = threads_of(field_of(document, name, "threads"), name);
  for (const Rate& rate : kRates) {
    profile.*rate.value = rate_of(field_of(document, name, rate.name), name, rate.name);
  }
  return profile;
}

}  // namespace headrace
