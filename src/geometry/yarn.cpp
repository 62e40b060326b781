// SPDX-License-Identifier: Apache-2.0
#include "geometry/yarn.h"

#include <cmath>

namespace headrace {

double yarn_temperature(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double yarn_attention_factor(const Yarn& yarn) {
  if (yarn.attention_factor) {
    return *yarn.attention_factor;
  }
  const double mscale = yarn.mscale.value_or(0.0);
  const double mscale_all_dim = yarn.mscale_all_dim.value_or(0.0);
  if (mscale != 0.0 && mscale_all_dim != 0.0) {
    return yarn_temperature(yarn.factor, mscale) / yarn_temperature(yarn.factor, mscale_all_dim);
  }
  return yarn_temperature(yarn.factor, 1.0);
}

}  // namespace headrace
