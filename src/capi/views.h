// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "headrace/c_api.h"
#include "headrace/cache.h"
#include "headrace/cuda.h"
#include "headrace/requests.h"
#include "headrace/view.h"

/// Windows of the caller's on memory, as the library's views.
namespace headrace::capi {

/// @throws Error naming `name` where there is none, for a dtype or a number of dimensions that the library has not, a
///         negative size, or an address that does not suit the elements
[[nodiscard]] AnyView required_view(const std::string& name, const HrView& view);
/// The same, but empty where there is none.
[[nodiscard]] AnyView optional_view(const std::string& name, const HrView& view);

/// Views of elements of one type.
template <class T>
[[nodiscard]] View<T> required_view(const std::string& name, const HrView& view) {
  return required_view(name, view).as<T>(name);
}
template <class T>
[[nodiscard]] View<T> optional_view(const std::string& name, const HrView& view) {
  const AnyView found = optional_view(name, view);
  return found.empty() ? View<T>() : found.as<T>(name);
}

/// The scale is that of fp8, and 1 for what has none.
[[nodiscard]] MutableCacheView cache_of(const HrCache& cache, CacheFormat format) noexcept;
/// An indexer's cache, which has no scale.
[[nodiscard]] MutableCacheView index_cache_of(const HrCache& cache) noexcept;
[[nodiscard]] Requests requests_of(const HrRequests& requests);
/// @throws Error naming `name` for a negative size, or none at an address
[[nodiscard]] std::span<std::byte> memory_of(const std::string& name, const HrMemory& memory);
[[nodiscard]] inline Stream stream_of(void* stream) noexcept { return {stream}; }

}  // namespace headrace::capi
