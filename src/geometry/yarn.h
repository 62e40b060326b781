// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headrace/model.h"

namespace headrace {

/// YaRN's temperature: 0.1 * mscale * ln(factor) + 1 (section 3.4 of the paper), 1 where the context is not extended.
[[nodiscard]] double yarn_temperature(double factor, double mscale);

/// What sines and cosines are multiplied with: attention_factor, or what transformers makes of the other fields.
[[nodiscard]] double yarn_attention_factor(const Yarn& yarn);

}  // namespace headrace
