// SPDX-License-Identifier: Apache-2.0
#include "adversary.h"

#include <cstdlib>
#include <random>
#include <string_view>
#include <utility>

#include "fault.h"

namespace headrace::emulator {
namespace {

std::uint64_t choose_seed() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets variables
  const char* chosen = std::getenv("HEADRACE_EMULATOR_SEED");
  return chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : std::random_device{}();
}

std::optional<Completion> choose_completion() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets variables
  const char* chosen = std::getenv("HEADRACE_EMULATOR_COMPLETION");
  if (chosen == nullptr) {
    return std::nullopt;
  }
  const std::string_view name = chosen;
  if (name == "eager") {
    return Completion::eager;
  }
  if (name == "lazy") {
    return Completion::lazy;
  }
  if (name == "random") {
    return Completion::random;
  }
  throw Fault("HEADRACE_EMULATOR_COMPLETION is eager, lazy or random");
}

}  // namespace

Adversary::Adversary() : seed_(choose_seed()), random_(seed_), fixed_(choose_completion()) {}

void Adversary::begin_launch() {
  constexpr Completion kAny[] = {Completion::eager, Completion::lazy, Completion::random};
  const Completion any = kAny[below(3)];  // drawn anyway, so that a fixed one changes nothing else
  of_launch_ = fixed_.value_or(any);
}

void Adversary::shuffle(std::span<int> values) {
  for (auto left = static_cast<std::uint32_t>(values.size()); left > 1; --left) {
    std::swap(values[left - 1], values[below(left)]);
  }
}

Adversary& adversary() {
  static Adversary instance;
  return instance;
}

}  // namespace headrace::emulator
