// SPDX-License-Identifier: Apache-2.0
#include "layer/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "device/parallel.h"
#include "geometry/yarn.h"
#include "headrace/error.h"

namespace headrace::layer {
namespace {

/// How much of each pair's frequency is divided by `factor`: 0 for pairs that turn more than beta_fast times within the
/// original context, 1 for those that turn less than beta_slow times, linear in the pair's number between
/// ("NTK-by-parts", section 3.2 of the paper).
std::vector<double> yarn_interpolation(const Rope& rope, const Yarn& yarn) {
  const auto dim = static_cast<double>(rope.dim);
  const auto pair_that_turns = [&](double times) {
    const double context = static_cast<double>(yarn.original_max_position_embeddings);
    return dim * std::log(context / (times * 2.0 * std::numbers::pi)) / (2.0 * std::log(rope.theta));
  };
  double low = pair_that_turns(yarn.beta_fast);
  double high = pair_that_turns(yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) {
    high += 0.001;  // the width Hugging Face gives a ramp that would have none
  }
  std::vector<double> share(static_cast<std::size_t>(rope.dim / 2));
  for (std::size_t i = 0; i < share.size(); ++i) {
    share[i] = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  }
  return share;
}

template <class T>
void rotate_row(T* x, std::int64_t pairs, bool interleave, const float* cosine, const float* sine) {
  const std::int64_t step = interleave ? 2 : 1;
  const std::int64_t partner = interleave ? 1 : pairs;
  for (std::int64_t i = 0; i < pairs; ++i) {
    T& first = x[i * step];
    T& second = x[i * step + partner];
    const auto a = static_cast<float>(first);
    const auto b = static_cast<float>(second);
    first = T(a * cosine[i] - b * sine[i]);
    second = T(b * cosine[i] + a * sine[i]);
  }
}

}  // namespace

RopeFrequencies rope_frequencies(const Rope& rope) {
  RopeFrequencies result;
  result.inverse.resize(static_cast<std::size_t>(rope.dim / 2));
  for (std::size_t i = 0; i < result.inverse.size(); ++i) {
    result.inverse[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope.dim));
  }
  if (rope.yarn) {
    const std::vector<double> interpolated = yarn_interpolation(rope, *rope.yarn);
    for (std::size_t i = 0; i < result.inverse.size(); ++i) {
      result.inverse[i] *= interpolated[i] / rope.yarn->factor + (1.0 - interpolated[i]);
    }
    result.attention_factor = yarn_attention_factor(*rope.yarn);
  }
  return result;
}

RopeTable::RopeTable(const Rope& rope, View<const std::int32_t> positions, int threads)
    : tokens_(positions.dim(0)),
      pairs_(rope.dim / 2),
      cosine_(static_cast<std::size_t>(tokens_ * pairs_)),
      sine_(cosine_.size()) {
  const RopeFrequencies frequencies = rope_frequencies(rope);
  // Angles are float64: in float32 the angle of a position near 10^6 is off by up to 1/32 of a radian.
  device::parallel_for(tokens_, threads, [&](std::int64_t t, int) {
    const double position = positions(t);
    for (std::int64_t i = 0; i < pairs_; ++i) {
      const double angle = position * frequencies.inverse[static_cast<std::size_t>(i)];
      const auto at = static_cast<std::size_t>(t * pairs_ + i);
      cosine_[at] = static_cast<float>(std::cos(angle) * frequencies.attention_factor);
      sine_[at] = static_cast<float>(std::sin(angle) * frequencies.attention_factor);
    }
  });
}

void RopeTable::rotate(AnyView x, bool interleave, int threads) const {
  x.expect("rope vectors", {tokens_, -1, 2 * pairs_});
  if (x.stride(2) != 1) {
    throw Error("rope vectors", "a contiguous last dimension", "stride " + std::to_string(x.stride(2)));
  }
  const auto rotate_all = [&](const auto& rows) {
    device::parallel_for(tokens_, threads, [&](std::int64_t t, int) {
      const auto at = static_cast<std::size_t>(t * pairs_);
      for (std::int64_t h = 0; h < rows.dim(1); ++h) {
        rotate_row(rows.at(t, h), pairs_, interleave, cosine_.data() + at, sine_.data() + at);
      }
    });
  };
  if (x.dtype() == DType::float32) {
    rotate_all(x.as<float>("rope vectors"));
  } else {
    rotate_all(x.as<bfloat16>("rope vectors"));
  }
}

}  // namespace headrace::layer
