// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "dl_api.h"
#include "headrace/view.h"

/// Tensors of a DLPack capsule as the library's views.
namespace headrace::python {

/// Where a call's tensors have to be.
struct Place {
  bool cuda = false;
  int ordinal = 0;  ///< of the GPU
};

/// @throws Error naming `name` when there is none, or it is elsewhere, of another dtype than the library has, or of
/// more
///         than four dimensions
[[nodiscard]] ConstAnyView required_input(const std::string& name, const HrTensor& tensor, const Place& place);
/// The same, but empty where there is none.
[[nodiscard]] ConstAnyView optional_input(const std::string& name, const HrTensor& tensor, const Place& place);

/// Outputs must not be read-only.
[[nodiscard]] AnyView required_output(const std::string& name, const HrTensor& tensor, const Place& place);
[[nodiscard]] AnyView optional_output(const std::string& name, const HrTensor& tensor, const Place& place);

/// A typed view, which stays empty where the other is.
template <class T, class Void>
[[nodiscard]] auto typed(const std::string& name, const BasicAnyView<Void>& view) {
  return view.empty() ? decltype(view.template as<T>(name))() : view.template as<T>(name);
}

}  // namespace headrace::python
