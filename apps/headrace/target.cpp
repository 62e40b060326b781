// SPDX-License-Identifier: Apache-2.0
#include "target.h"

#include <fmt/core.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "busy_marker.h"
#include "cuda_kernels.h"
#include "device/parallel.h"
#include "headrace/cuda.h"
#include "headrace/error.h"
#include "numbers.h"
#include "output.h"
#include "progress.h"
#include "stated_error.h"

namespace headrace::app {
namespace {

[[noreturn]] void refuse_device(const std::string& expected, const std::string& actual) {
  throw CannotRunError("--device", expected, actual, fmt::format("expected {}, got {}", expected, actual));
}

std::shared_ptr<CudaDevice> open_gpu(int ordinal) {
  if (cuda_kernels() && CudaDevice::count() == 0) {
    refuse_device("a GPU and its driver", "none: no CUDA device was found");
  }
  std::shared_ptr<CudaDevice> gpu;
  try {
    gpu = std::make_shared<CudaDevice>(ordinal);
  } catch (const Error& error) {
    refuse_device(error.expected(), error.actual());
  }
  if (!gpu->unmet().empty()) {
    refuse_device("a GPU that the kernels run on", gpu->unmet());
  }
  return gpu;
}

/// This machine's profile for the processor, where it was measured before.
std::optional<Profile> kept_profile(const Options& options) {
  const std::filesystem::path kept = profile_path(options.compute, options.threads);
  std::error_code ignored;
  if (!kept.empty() && std::filesystem::exists(kept, ignored)) {
    try {
      Profile profile = load_profile(kept);
      if (profile.name == machine_name()) {
        return profile;
      }
    } catch (const Error& error) {
      note(fmt::format("note: measuring anew: {}", error.what()));
    }
  }
  return std::nullopt;
}

void note_busy(const std::filesystem::path& kept) {
  note("note: this machine was too busy to measure its rates; times are predicted from nominal ones");
  if (was_busy(kept)) {
    note(fmt::format("note: they are for a day; to measure sooner, delete {}", busy_marker(kept).string()));
  }
}

/// Measures it, and keeps it for the next time.
Profile measured_profile(const Options& options) {
  const std::filesystem::path kept = profile_path(options.compute, options.threads);
  constexpr std::int64_t kParts = 1000;
  std::int64_t done = 0;
  Progress progress("measuring this machine, once", kParts);
  if (!progress.on_terminal()) {
    note("note: measuring this machine's rates, once; --profile nominal does without");
  }
  Profile profile = measure_profile(options.compute, options.threads, [&](double share) {
    const auto now = static_cast<std::int64_t>(share * static_cast<double>(kParts));
    progress.advance(now - done);
    done = now;
  });
  if (profile.name != machine_name()) {
    remember_busy(kept);
    note_busy(kept);
    return profile;
  }
  if (!kept.empty()) {
    try {
      save_profile(profile, kept);
    } catch (const Error& error) {
      note(fmt::format("note: this machine's rates could not be kept: {}", error.what()));
    }
  }
  return profile;
}

/// A file's profile is used as it is, also where it was measured for something else.
Profile profile_of_file(const Options& options) {
  if (!std::filesystem::exists(options.profile)) {
    throw Error("--profile", "auto, nominal, or the name of a file",
                "\"" + options.profile + "\", and there is no such file");
  }
  Profile profile = load_profile(options.profile);
  if (profile.compute != options.compute) {
    note(fmt::format("note: the rates of {} are of {}, and this run computes in {}", options.profile,
                     headrace::name_of(profile.compute), headrace::name_of(options.compute)));
  }
  const int threads = device::thread_count(options.threads);
  if (!options.gpu && profile.threads != threads) {
    note(fmt::format("note: the rates of {} were measured with {}, and this run has {}", options.profile,
                     counted(profile.threads, "thread"), threads));
  }
  return profile;
}

/// The rates of --profile where they are there; nothing where this machine's have yet to be measured.
std::optional<Profile> ready_profile(const Options& options, const Device& device) {
  const bool nominal = options.profile == "nominal";
  if (!nominal && options.profile != "auto") {
    return profile_of_file(options);
  }
  if (device.cuda != nullptr) {
    return Profile::nominal_cuda();
  }
  std::optional<Profile> kept = nominal ? Profile::nominal_cpu(options.compute) : kept_profile(options);
  if (const std::filesystem::path file = profile_path(options.compute, options.threads); !kept && was_busy(file)) {
    note_busy(file);
    return Profile::nominal_cpu(options.compute);
  }
  return kept;
}

}  // namespace

Device chosen_device(const Options& options) {
  Device device;
  device.threads = options.threads;
  if (options.gpu) {
    device.cuda = open_gpu(*options.gpu);
  }
  return device;
}

Profile chosen_profile(const Options& options, const Device& device) {
  std::optional<Profile> ready = ready_profile(options, device);
  return ready ? std::move(*ready) : measured_profile(options);
}

Target chosen_target(const Options& options) {
  Device device = chosen_device(options);
  Profile profile = chosen_profile(options, device);
  return {std::move(device), std::move(profile)};
}

Target chosen_target(const Options& options, const std::function<void(const Target&)>& attempt) {
  Target target{chosen_device(options), {}};
  if (std::optional<Profile> ready = ready_profile(options, target.device)) {
    target.profile = std::move(*ready);
    return target;
  }
  target.profile = Profile::nominal_cpu(options.compute);
  attempt(target);
  if (query_tokens(options.batch) > 0) {
    target.profile = measured_profile(options);
  }
  return target;
}

std::string name_of(const Device& device) {
  return device.cuda != nullptr ? fmt::format("cuda:{}", device.cuda->ordinal()) : "cpu";
}

std::string describe(const Device& device) {
  return device.cuda != nullptr ? fmt::format("{}, {}", name_of(device), device.cuda->name())
                                : fmt::format("cpu with {}", counted(device::thread_count(device.threads), "thread"));
}

}  // namespace headrace::app
