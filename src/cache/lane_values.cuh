// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cache/fp8_ds_mla.h"

/// How a warp walks over the values of a cache row: 256 a step, eight a lane, so that each half warp has one scale
/// group of fp8_ds_mla. Where alignment allows, a lane's values are neighbours and move in accesses of up to 16 bytes;
/// elsewhere they are 16 apart and move one by one.
namespace headrace::cache::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kHalfWarp = 16;
inline constexpr int kLaneValues = 8;
inline constexpr int kStepValues = kWarp * kLaneValues;
static_assert(kHalfWarp * kLaneValues == kScaleGroupSize);

/// An e4m3 code.
using E4m3 = std::uint8_t;

/// Bytes a vector access of eight values of T has to be aligned to.
template <class T>
inline constexpr int kVectorAlignment = sizeof(T) == 1 ? 8 : 16;

/// What a vector access moves.
template <class T>
using Word = std::conditional_t<kVectorAlignment<T> == 8, uint2, uint4>;

/// Eight values, kept as words so that a copy needs no unpacking.
template <class T>
struct LaneValues {
  static constexpr int kWords = kLaneValues * static_cast<int>(sizeof(T)) / kVectorAlignment<T>;
  Word<T> words[kWords]{};

  __device__ T& operator[](int j) { return reinterpret_cast<T*>(words)[j]; }
  __device__ const T& operator[](int j) const { return reinterpret_cast<const T*>(words)[j]; }
};

/// Where value j of this lane lies in a step.
template <bool kVector>
__device__ int value_index(int j) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (kVector) {
    return lane * kLaneValues + j;
  }
  return lane / kHalfWarp * static_cast<int>(kScaleGroupSize) + lane % kHalfWarp + j * kHalfWarp;
}

/// This lane's values of the step from `first` on of a row of n; zero bits where the row has ended.
template <bool kVector, class T>
__device__ LaneValues<T> load_values(const T* row, int first, int n) {
  LaneValues<T> values;
  if constexpr (kVector) {
    const int i = first + value_index<true>(0);
    if (i < n) {
      const auto* from = reinterpret_cast<const Word<T>*>(row + i);
#pragma unroll
      for (int w = 0; w < LaneValues<T>::kWords; ++w) {
        values.words[w] = __ldg(from + w);
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < kLaneValues; ++j) {
      const int i = first + value_index<false>(j);
      if (i < n) {
        values[j] = row[i];
      }
    }
  }
  return values;
}

template <bool kVector, class T>
__device__ void store_values(const LaneValues<T>& values, T* row, int first, int n) {
  if constexpr (kVector) {
    const int i = first + value_index<true>(0);
    if (i < n) {
      auto* to = reinterpret_cast<Word<T>*>(row + i);
#pragma unroll
      for (int w = 0; w < LaneValues<T>::kWords; ++w) {
        to[w] = values.words[w];
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < kLaneValues; ++j) {
      const int i = first + value_index<false>(j);
      if (i < n) {
        row[i] = values[j];
      }
    }
  }
}

__device__ inline LaneValues<float> to_float(const LaneValues<float>& values, float) { return values; }

__device__ inline LaneValues<float> to_float(const LaneValues<__nv_bfloat16>& values, float) {
  LaneValues<float> result;
#pragma unroll
  for (int j = 0; j < kLaneValues; ++j) {
    result[j] = __bfloat162float(values[j]);
  }
  return result;
}

/// e4m3 values times their scale: the code's value is exact in binary16, so the product rounds once.
__device__ inline LaneValues<float> to_float(const LaneValues<E4m3>& codes, float scale) {
  // Pairs are taken from words: put together from codes they would cost the compiler more than their conversion.
  const std::uint32_t words[2] = {codes.words[0].x, codes.words[0].y};
  LaneValues<float> result;
#pragma unroll
  for (int j = 0; j < kLaneValues; j += 2) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[j / 4] >> 8 * (j % 4));
    const float2 both = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    result[j] = both.x * scale;
    result[j + 1] = both.y * scale;
  }
  return result;
}

template <class T>
__device__ LaneValues<T> from_float(const LaneValues<float>& values, float scale);

template <>
__device__ inline LaneValues<float> from_float(const LaneValues<float>& values, float) {
  return values;
}

template <>
__device__ inline LaneValues<__nv_bfloat16> from_float(const LaneValues<float>& values, float) {
  LaneValues<__nv_bfloat16> result;
#pragma unroll
  for (int j = 0; j < kLaneValues; ++j) {
    result[j] = __float2bfloat16_rn(values[j]);
  }
  return result;
}

/// Divided by the scale, to nearest even, saturating at 448.
template <>
__device__ inline LaneValues<E4m3> from_float(const LaneValues<float>& values, float scale) {
  LaneValues<E4m3> result;
#pragma unroll
  for (int j = 0; j < kLaneValues; j += 2) {
    const float2 both{values[j] / scale, values[j + 1] / scale};
    const __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2(both, __NV_SATFINITE, __NV_E4M3);
    result[j] = static_cast<E4m3>(pair & 0xffU);
    result[j + 1] = static_cast<E4m3>(pair >> 8);
  }
  return result;
}

}  // namespace headrace::cache::cuda
