// SPDX-License-Identifier: Apache-2.0
#include "attention/paths/path.h"

#include "attention/paths/dense_mha.h"
#include "attention/paths/masked_mha.h"
#include "attention/paths/topk_mqa.h"

namespace headrace::attention {

Work& Work::operator+=(const Work& other) noexcept {
  product_flops += other.product_flops;
  mha_flops += other.mha_flops;
  mqa_flops += other.mqa_flops;
  mask_keys += other.mask_keys;
  cache_bytes += other.cache_bytes;
  return *this;
}

const PathAlgorithm& algorithm_of(Path path) {
  static const DenseMha dense_mha;
  static const MaskedMha masked_mha;
  static const TopkMqa topk_mqa;
  switch (path) {
    case Path::dense_mha:
      return dense_mha;
    case Path::masked_mha:
      return masked_mha;
    case Path::topk_mqa:
      break;
  }
  return topk_mqa;
}

}  // namespace headrace::attention
