// SPDX-License-Identifier: Apache-2.0
#include "capi/views.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "capi/names.h"
#include "headrace/error.h"

namespace headrace::capi {
namespace {

constexpr int kMaxRank = std::tuple_size_v<Dims>;
static_assert(kMaxRank == std::extent_v<decltype(HrView::shape)>);

/// All zero; padding is not looked at, for there is none.
bool is_none(const HrView& view) noexcept {
  static_assert(std::has_unique_object_representations_v<HrView>);
  const HrView none{};
  return std::memcmp(&view, &none, sizeof view) == 0;
}

void expect_address(const std::string& name, const HrView& view, DType dtype) {
  const std::int64_t* const end = view.shape + view.rank;
  if (view.data == nullptr && std::find(view.shape, end, 0) == end) {
    throw Error(name, "an address", "null");
  }
  if (const auto left = reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(size_of(dtype));
      left != 0) {
    throw Error(name, "an address divisible by the " + std::to_string(size_of(dtype)) + " bytes of an element",
                "one with a remainder of " + std::to_string(left));
  }
}

}  // namespace

AnyView required_view(const std::string& name, const HrView& view) {
  if (is_none(view)) {
    throw Error(name, "a view", "none");
  }
  const DType dtype = dtype_of(name, view.dtype);
  if (view.rank < 1 || view.rank > kMaxRank) {
    throw Error(name, "1 to " + std::to_string(kMaxRank) + " dimensions", std::to_string(view.rank));
  }
  Dims shape{};
  Dims stride{};
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] < 0) {
      throw Error(name, "sizes of at least 0", std::to_string(view.shape[i]));
    }
    shape[static_cast<std::size_t>(i)] = view.shape[i];
    stride[static_cast<std::size_t>(i)] = view.stride[i];
  }
  expect_address(name, view, dtype);
  return AnyView(view.data, dtype, view.rank, shape, stride);
}

AnyView optional_view(const std::string& name, const HrView& view) {
  return is_none(view) ? AnyView() : required_view(name, view);
}

MutableCacheView cache_of(const HrCache& cache, CacheFormat format) noexcept {
  return {.data = static_cast<std::byte*>(cache.data),
          .num_pages = cache.num_pages,
          .page_size = cache.page_size,
          .page_stride = cache.page_stride,
          .row_stride = cache.row_stride,
          .scale = format == CacheFormat::fp8 ? cache.scale : 1.0F,
          .row_bytes = cache.row_bytes};
}

MutableCacheView index_cache_of(const HrCache& cache) noexcept { return cache_of(cache, CacheFormat::bfloat16); }

Requests requests_of(const HrRequests& requests) {
  return {.query_start = required_view<std::int32_t>("query_start", requests.query_start),
          .seq_len = required_view<std::int32_t>("seq_len", requests.seq_len),
          .block_table = required_view<std::int32_t>("block_table", requests.block_table)};
}

std::span<std::byte> memory_of(const std::string& name, const HrMemory& memory) {
  if (memory.bytes < 0) {
    throw Error(name, "a size of at least 0", std::to_string(memory.bytes));
  }
  if (memory.data == nullptr && memory.bytes > 0) {
    throw Error(name, "an address", "null");
  }
  return {static_cast<std::byte*>(memory.data), static_cast<std::size_t>(memory.bytes)};
}

}  // namespace headrace::capi
