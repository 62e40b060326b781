// SPDX-License-Identifier: Apache-2.0
#include "stage_errors.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "attention/oracle.h"
#include "check.h"
#include "device/parallel.h"
#include "output_errors.h"

namespace headrace::app {
namespace {

constexpr double kLargestE4m3 = 448.0;
constexpr int kLeastE4m3Exponent = -6;  // below it numbers are 2^-9 apart
constexpr std::int64_t kScaleGroup = 128;
constexpr double kSmallestAmax = 1e-4;

std::size_t at(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

/// The exponent of a magnitude > 0: it lies in [2^e, 2^(e+1)).
int exponent_of(double magnitude) noexcept { return std::ilogb(magnitude); }

/// Per value of a latent the scale that fp8_ds_mla gives it.
double group_scale(const View<const float>& latent, std::int64_t row, std::int64_t i) {
  const std::int64_t begin = i / kScaleGroup * kScaleGroup;
  double largest = 0.0;
  for (std::int64_t j = begin; j < begin + kScaleGroup; ++j) {
    largest = std::max(largest, std::abs(static_cast<double>(latent(row, j))));
  }
  return std::max(largest, kSmallestAmax) / kLargestE4m3;
}

/// The part of a cache row's error that its format does not explain, relative to the row.
/// @param own_error  (i, value) -> the most that the format may change the value
template <class OwnError>
double unexplained(const View<const float>& expected, std::int64_t row, std::span<const float> actual,
                   const OwnError& own_error) {
  double excess = 0.0;
  double norm = 0.0;
  for (std::int64_t i = 0; i < expected.dim(1); ++i) {
    const double want = static_cast<double>(expected(row, i));
    const double difference = std::abs(static_cast<double>(actual[at(i)]) - want);
    const double beyond = difference - own_error(i, want);
    // Not std::max: it would turn a NaN into 0.
    excess += beyond <= 0.0 ? 0.0 : beyond * beyond;
    norm += want * want;
  }
  return relative_error(excess, norm);
}

}  // namespace

double e4m3_error(double value, double scale) noexcept {
  const double magnitude = std::abs(value) / scale;
  const double held = std::min(magnitude, kLargestE4m3);
  const int exponent = held == 0.0 ? kLeastE4m3Exponent : std::max(exponent_of(held), kLeastE4m3Exponent);
  return scale * std::max(std::ldexp(1.0, exponent - 4), magnitude - kLargestE4m3);
}

double bfloat16_error(double value) noexcept {
  return value == 0.0 ? 0.0 : std::ldexp(1.0, exponent_of(std::abs(value)) - 8);
}

void StageErrors::add_appended(const AppendedStep& appended, const Step& step) {
  const Piece& piece = step.pieces().front();
  for (std::int64_t token = 0; token < piece.size(); ++token) {
    add_queries(appended.q, token, piece.begin + token);
    add_cache_row(appended.cache, step.slots()(token), piece.begin + token);
  }
}

void StageErrors::add_queries(const ConstAnyView& q, std::int64_t token, std::int64_t position) {
  const View<const float> expected = reference_.q.view_as<float>();
  double difference = 0.0;
  double norm = 0.0;
  for (std::int64_t head = 0; head < expected.dim(1); ++head) {
    for (std::int64_t i = 0; i < expected.dim(2); ++i) {
      const double want = static_cast<double>(expected(position, head, i));
      const std::int64_t offset = token * q.stride(0) + head * q.stride(1) + i * q.stride(2);
      const double delta = static_cast<double>(element(q, offset)) - want;
      difference += delta * delta;
      norm += want * want;
    }
  }
  queries_ = std::max(queries_, relative_error(difference, norm));
}

void StageErrors::add_cache_row(const CacheView& cache, std::int64_t slot, std::int64_t position) {
  const std::vector<float> row = attention::oracle_cache_row(attention_, cache, slot);
  const View<const float> latent = reference_.latent.view_as<float>();
  // What was stored is the compute dtype's value, which may lie beyond the next power of two.
  const double grown = 1.0 + tolerance_;
  const double scale = static_cast<double>(cache.scale);
  double group = 0.0;
  const auto latent_error = [&](std::int64_t i, double value) {
    switch (attention_.format) {
      case CacheFormat::float32:
        return 0.0;
      case CacheFormat::bfloat16:
        return bfloat16_error(value * grown);
      case CacheFormat::fp8:
        return e4m3_error(value * grown, scale);
      case CacheFormat::fp8_ds_mla:
        group = i % kScaleGroup == 0 ? group_scale(latent, position, i) : group;
        return e4m3_error(value * grown, group * grown);
    }
    return 0.0;
  };
  cache_ = std::max(cache_, unexplained(latent, position, row, latent_error));
  if (reference_.rope_key.empty()) {
    return;
  }
  const auto rope_error = [&](std::int64_t, double value) {
    return attention_.format == CacheFormat::float32 ? 0.0
           : attention_.format == CacheFormat::fp8   ? e4m3_error(value * grown, scale)
                                                     : bfloat16_error(value * grown);
  };
  cache_ = std::max(cache_, unexplained(reference_.rope_key.view_as<float>(), position,
                                        std::span(row).subspan(at(latent.dim(1))), rope_error));
}

void StageErrors::add_output(const ConstAnyView& attended, const ConstAnyView& out,
                             const std::vector<std::int64_t>& rows, int threads) {
  const View<const float> weight = reference_.o_proj.view_as<float>();  // [hidden, H * v]
  const std::int64_t v = attended.dim(2);
  std::vector<double> errors(rows.size());
  device::parallel_for(static_cast<std::int64_t>(rows.size()), threads, [&](std::int64_t r, int) {
    const std::int64_t row = rows[at(r)];
    std::vector<double> in(at(weight.dim(1)));
    for (std::int64_t i = 0; i < weight.dim(1); ++i) {
      in[at(i)] = static_cast<double>(
          element(attended, row * attended.stride(0) + i / v * attended.stride(1) + i % v * attended.stride(2)));
    }
    double difference = 0.0;
    double norm = 0.0;
    for (std::int64_t o = 0; o < weight.dim(0); ++o) {
      const float* w = weight.at(o);
      double want = 0.0;
#pragma omp simd reduction(+ : want)
      for (std::int64_t i = 0; i < weight.dim(1); ++i) {
        want += static_cast<double>(w[i]) * in[at(i)];
      }
      const double delta = static_cast<double>(element(out, row * out.stride(0) + o * out.stride(1))) - want;
      difference += delta * delta;
      norm += want * want;
    }
    errors[at(r)] = relative_error(difference, norm);
  });
  for (const double error : errors) {
    output_ = std::max(output_, error);
  }
}

ScaleEffect scale_effect(const ReferenceLayer& reference, double scale) {
  ScaleEffect effect;
  const double smallest = std::ldexp(scale, -10);
  for (const Tensor* part : {&reference.latent, &reference.rope_key}) {
    if (part->empty()) {
      continue;
    }
    const View<const float> values = part->view_as<float>();
    for (std::int64_t i = 0; i < values.size(); ++i) {
      const double magnitude = std::abs(static_cast<double>(values.data()[i]));
      effect.saturated += magnitude > kLargestE4m3 * scale ? 1 : 0;
      effect.zeroed += magnitude > 0.0 && magnitude <= smallest ? 1 : 0;
      effect.largest = std::max(effect.largest, magnitude);
    }
    effect.values += values.size();
  }
  return effect;
}

}  // namespace headrace::app
