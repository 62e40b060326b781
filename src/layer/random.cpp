// SPDX-License-Identifier: Apache-2.0
#include "layer/random.h"

#include <algorithm>
#include <cmath>

#include "device/parallel.h"
#include "headrace/error.h"

namespace headrace::layer {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15U;  // 2^64 / golden ratio: SplitMix64's step

constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

constexpr std::uint64_t start_of(std::uint64_t seed, std::uint64_t stream) noexcept {
  return mix(mix(seed + kGolden) + stream);
}

constexpr std::uint64_t bits_at(std::uint64_t start, std::uint64_t counter) noexcept {
  return mix(start + (counter + 1) * kGolden);
}

/// The sum of the four 16-bit parts of a word.
constexpr std::int32_t sum_of_quarters(std::uint64_t word) noexcept {
  constexpr std::uint64_t kEven = 0x0000ffff0000ffffU;
  const std::uint64_t pairs = (word & kEven) + ((word >> 16) & kEven);
  return static_cast<std::int32_t>((pairs & 0xffffffffU) + (pairs >> 32));
}

constexpr std::int32_t kMean = 4 * 0xffff;         // of eight uniform integers in [0, 65535]
constexpr double kVariance = 8.0 / 12.0 * 0x1p32;  // less 8 / 12, which is nothing here

constexpr std::int64_t kBlock = std::int64_t{1} << 16;

template <class T>
void fill(T* out, std::int64_t n, std::uint64_t start, float scale, int threads) {
  device::parallel_for((n + kBlock - 1) / kBlock, threads, [&](std::int64_t block, int) {
    const std::int64_t end = std::min(n, (block + 1) * kBlock);
    for (std::int64_t i = block * kBlock; i < end; ++i) {
      const auto counter = 2 * static_cast<std::uint64_t>(i);
      const std::int32_t sum =
          sum_of_quarters(bits_at(start, counter)) + sum_of_quarters(bits_at(start, counter + 1)) - kMean;
      out[i] = T(static_cast<float>(sum) * scale);
    }
  });
}

template <class Void>
bool is_contiguous(const BasicAnyView<Void>& view) noexcept {
  std::int64_t step = 1;
  for (int i = view.rank() - 1; i >= 0; --i) {
    if (view.dim(i) > 1 && view.stride(i) != step) {
      return false;
    }
    step *= view.dim(i);
  }
  return true;
}

}  // namespace

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) noexcept {
  return bits_at(start_of(seed, stream), counter);
}

void fill_normal(AnyView out, std::uint64_t seed, std::uint64_t stream, double stddev, int threads) {
  if (!is_contiguous(out)) {
    throw Error("view to fill", "a contiguous one", "strides");
  }
  std::int64_t n = out.empty() ? 0 : 1;
  for (int i = 0; i < out.rank(); ++i) {
    n *= out.dim(i);
  }
  const auto scale = static_cast<float>(stddev / std::sqrt(kVariance));
  const std::uint64_t start = start_of(seed, stream);
  if (out.dtype() == DType::float32) {
    fill(out.as<float>("view to fill").data(), n, start, scale, threads);
  } else {
    fill(out.as<bfloat16>("view to fill").data(), n, start, scale, threads);
  }
}

}  // namespace headrace::layer
