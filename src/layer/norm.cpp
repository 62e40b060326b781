// SPDX-License-Identifier: Apache-2.0
#include "layer/norm.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "device/parallel.h"
#include "headrace/error.h"

namespace headrace::layer {
namespace {

/// The mean of (x - center)^2, in float64.
template <class T>
double mean_square(const T* x, std::int64_t n, double center) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(static_cast<float>(x[i])) - center;
    sum += value * value;
  }
  return sum / static_cast<double>(n);
}

template <class T>
double mean(const T* x, std::int64_t n) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(static_cast<float>(x[i]));
  }
  return sum / static_cast<double>(n);
}

/// Calls norm(row, N) for every row of x, with the row's element type.
template <class Norm>
void for_each_row(AnyView x, std::int64_t n, int threads, const Norm& norm) {
  x.expect("norm input", {-1, n});
  if (x.stride(1) != 1) {
    throw Error("norm input", "contiguous rows", "stride " + std::to_string(x.stride(1)));
  }
  const auto run = [&](const auto& rows) {
    device::parallel_for(rows.dim(0), threads, [&](std::int64_t t, int) { norm(rows.at(t), n); });
  };
  if (x.dtype() == DType::float32) {
    run(x.as<float>("norm input"));
  } else {
    run(x.as<bfloat16>("norm input"));
  }
}

}  // namespace

void rms_norm(AnyView x, View<const float> weight, double epsilon, int threads) {
  weight.expect("norm weight", {-1});
  for_each_row(x, weight.dim(0), threads, [&]<class T>(T* row, std::int64_t n) {
    const double scale = 1.0 / std::sqrt(mean_square(row, n, 0.0) + epsilon);
    for (std::int64_t i = 0; i < n; ++i) {
      row[i] = T(static_cast<float>(static_cast<float>(row[i]) * scale * weight(i)));
    }
  });
}

void layer_norm(AnyView x, View<const float> weight, View<const float> bias, double epsilon, int threads) {
  weight.expect("norm weight", {-1});
  bias.expect("norm bias", {weight.dim(0)});
  for_each_row(x, weight.dim(0), threads, [&]<class T>(T* row, std::int64_t n) {
    const double center = mean(row, n);
    const double scale = 1.0 / std::sqrt(mean_square(row, n, center) + epsilon);
    for (std::int64_t i = 0; i < n; ++i) {
      row[i] = T(static_cast<float>((static_cast<float>(row[i]) - center) * scale * weight(i) + bias(i)));
    }
  });
}

}  // namespace headrace::layer
