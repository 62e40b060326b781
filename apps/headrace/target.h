// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "headrace/plan.h"
#include "headrace/profile.h"
#include "options.h"

namespace headrace::app {

/// What plans are made for: a device, and the rates that times are predicted from.
struct Target {
  Device device;
  Profile profile;
};

/// The device of --device. @throws CannotRunError where there is no such GPU, or the kernels do not run on it
[[nodiscard]] Device chosen_device(const Options& options);

/// The rates of --profile: nominal ones, a file's, or this machine's, which are measured where they are not yet kept.
/// Where it was too busy for that within the last day, they are nominal, and a note says so.
/// A GPU's are nominal or a file's.
[[nodiscard]] Profile chosen_profile(const Options& options, const Device& device);

/// Both.
[[nodiscard]] Target chosen_target(const Options& options);

/// Both, for a batch. Where rates would have to be measured, which takes many seconds, `attempt` gets nominal ones
/// first, to throw for what cannot be planned, and for a batch without new tokens, of which nothing is predicted, they
/// are all there is.
[[nodiscard]] Target chosen_target(const Options& options, const std::function<void(const Target&)>& attempt);

/// "cpu" or "cuda:0", as --device spells it.
[[nodiscard]] std::string name_of(const Device& device);
/// "cpu with 2 threads", or "cuda:0, " and the GPU's name.
[[nodiscard]] std::string describe(const Device& device);

}  // namespace headrace::app
