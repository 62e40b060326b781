// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headrace/model.h"

namespace headrace {

/// Whether every layer computes the same under two readings of one configuration. What a layer does not use (the theta
/// of a rope without dims, the epsilon of a norm that it does not have) does not count.
[[nodiscard]] bool same_layers(const ModelConfig& a, const ModelConfig& b);

}  // namespace headrace
