// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "c_api.h"
#include "headrace/cuda.h"
#include "headrace/error.h"
#include "headrace/plan.h"

/// What the opaque pointers of the C interface point to.
struct HrError {
  headrace::Error error;
};

struct HrDevice {
  std::shared_ptr<headrace::CudaDevice> cuda;
};

struct HrPlan {
  headrace::Plan plan;
  std::string text;  ///< the latest that was asked for
};

namespace headrace::python {

/// Runs the body of a function of the C interface: no exception leaves it.
template <class Body>
HrError* guarded(const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    return new HrError{error};
  } catch (const std::exception& error) {
    return new HrError{Error("headrace", "success", error.what())};
  }
}

/// @throws Error for an unknown name or a field out of range
[[nodiscard]] Attention attention_of(const HrAttention& attention);
[[nodiscard]] Batch batch_of(const HrBatch& batch);

}  // namespace headrace::python
