// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "headrace/c_api.h"
#include "headrace/cuda.h"
#include "headrace/plan.h"

// What the opaque pointers of the C interface point to; HrError is in errors.h.

struct HrDevice {
  std::shared_ptr<headrace::CudaDevice> cuda;
};

struct HrPlan {
  headrace::Plan plan;
  std::string text;  ///< the latest that was asked for
};
