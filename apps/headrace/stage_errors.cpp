// SPDX-License-Identifier: Apache-2.0
#include "stage_errors.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "cache_row.h"
#include "check.h"
#include "device/parallel.h"
#include "output_errors.h"

namespace headrace::app {
namespace {

constexpr double kLargestE4m3 = 448.0;
constexpr std::int64_t kRowsAtOnce = 16;  // that share a reading of the output weights

std::size_t at(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

/// Row `row` of a matrix of float32 or bfloat16.
std::vector<float> row_of(const ConstAnyView& matrix, std::int64_t row) {
  std::vector<float> values;
  if (!matrix.empty()) {
    for (std::int64_t i = 0; i < matrix.dim(1); ++i) {
      values.push_back(element(matrix, row * matrix.stride(0) + i * matrix.stride(1)));
    }
  }
  return values;
}

double row_error(std::span<const float> actual, const float* expected) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double want = static_cast<double>(expected[i]);
    const double delta = static_cast<double>(actual[i]) - want;
    difference += delta * delta;
    norm += want * want;
  }
  return relative_error(difference, norm);
}

}  // namespace

void StageErrors::add_appended(const AppendedStep& appended, const Step& step) {
  const Piece& piece = step.pieces().front();
  for (std::int64_t token = 0; token < piece.size(); ++token) {
    add_queries(appended.q, token, piece.begin + token);
    add_latent(appended, token, piece.begin + token);
    add_cache_row(appended, token, step.slots()(token));
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

void StageErrors::add_latent(const AppendedStep& appended, std::int64_t token, std::int64_t position) {
  latents_ =
      std::max(latents_, row_error(row_of(appended.latent, token), reference_.latent.view_as<float>().at(position)));
  if (!reference_.rope_key.empty()) {
    latents_ = std::max(latents_,
                        row_error(row_of(appended.rope_key, token), reference_.rope_key.view_as<float>().at(position)));
  }
}

void StageErrors::add_cache_row(const AppendedStep& appended, std::int64_t token, std::int64_t slot) {
  const std::vector<std::byte> expected = cache_row(attention_.format, appended.cache.scale,
                                                    row_of(appended.latent, token), row_of(appended.rope_key, token));
  wrong_cache_rows_ += std::equal(expected.begin(), expected.end(), appended.cache.row(slot)) ? 0 : 1;
}

void StageErrors::add_output(const ConstAnyView& attended, const ConstAnyView& out, int threads) {
  const View<const float> weight = reference_.o_proj.view_as<float>();  // [hidden, H * v]
  const std::int64_t v = attended.dim(2);
  const std::int64_t rows = attended.dim(0);
  const std::int64_t inner = weight.dim(1);
  std::vector<double> errors(at(rows));
  device::parallel_for((rows + kRowsAtOnce - 1) / kRowsAtOnce, threads, [&](std::int64_t block, int) {
    const std::int64_t begin = block * kRowsAtOnce;
    const std::int64_t count = std::min(kRowsAtOnce, rows - begin);
    std::vector<double> in(at(count * inner));
    for (std::int64_t r = 0; r < count; ++r) {
      for (std::int64_t i = 0; i < inner; ++i) {
        in[at(r * inner + i)] = static_cast<double>(element(
            attended, (begin + r) * attended.stride(0) + i / v * attended.stride(1) + i % v * attended.stride(2)));
      }
    }
    std::vector<double> difference(at(count));
    std::vector<double> norm(at(count));
    for (std::int64_t o = 0; o < weight.dim(0); ++o) {
      const float* w = weight.at(o);
      for (std::int64_t r = 0; r < count; ++r) {
        const double* x = &in[at(r * inner)];
        double want = 0.0;
#pragma omp simd reduction(+ : want)
        for (std::int64_t i = 0; i < inner; ++i) {
          want += static_cast<double>(w[i]) * x[i];
        }
        const double delta = static_cast<double>(element(out, (begin + r) * out.stride(0) + o * out.stride(1))) - want;
        difference[at(r)] += delta * delta;
        norm[at(r)] += want * want;
      }
    }
    for (std::int64_t r = 0; r < count; ++r) {
      errors[at(begin + r)] = relative_error(difference[at(r)], norm[at(r)]);
    }
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
      effect.nonzero += magnitude > 0.0 ? 1 : 0;
      effect.saturated += magnitude > kLargestE4m3 * scale ? 1 : 0;
      effect.zeroed += magnitude > 0.0 && magnitude <= smallest ? 1 : 0;
      effect.largest = std::max(effect.largest, magnitude);
    }
    effect.values += values.size();
  }
  return effect;
}

}  // namespace headrace::app
