// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "device/cuda/memory.h"
#include "headrace/cache.h"
#include "headrace/requests.h"
#include "headrace/selection.h"
#include "headrace/view.h"

namespace headrace::test {

/// A copy of a view's memory on the device, gaps included, with the same shape and strides.
template <class T>
class OnDevice {
 public:
  using Element = std::remove_const_t<T>;

  OnDevice() = default;
  explicit OnDevice(const View<T>& host) : host_(host), memory_(std::span<const Element>(host.data(), extent(host))) {}

  [[nodiscard]] View<T> view() const {
    return host_.empty() ? View<T>() : View<T>(memory_.data(), host_.rank(), host_.shape(), host_.strides());
  }

  /// Puts another view's memory in the place of the first one's, which must not be smaller.
  void replace(const View<T>& other) const {
    if (!other.empty()) {
      memory_.upload(std::span<const Element>(other.data(), extent(other)));
    }
  }

 private:
  static std::size_t extent(const View<T>& host) {
    if (host.size() == 0) {
      return 0;
    }
    std::int64_t last = 0;
    for (int i = 0; i < host.rank(); ++i) {
      last += (host.dim(i) - 1) * host.stride(i);
    }
    return static_cast<std::size_t>(last + 1);
  }

  View<T> host_;
  device::cuda::DeviceArray<Element> memory_;
};

/// Requests on the device.
class RequestsOnDevice {
 public:
  explicit RequestsOnDevice(const Requests& host)
      : query_start_(host.query_start), seq_len_(host.seq_len), block_table_(host.block_table) {}

  [[nodiscard]] Requests get() const { return {query_start_.view(), seq_len_.view(), block_table_.view()}; }
  void replace(const Requests& other) const {
    query_start_.replace(other.query_start);
    seq_len_.replace(other.seq_len);
    block_table_.replace(other.block_table);
  }

 private:
  OnDevice<const std::int32_t> query_start_;
  OnDevice<const std::int32_t> seq_len_;
  OnDevice<const std::int32_t> block_table_;
};

/// A selection on the device.
class SelectionOnDevice {
 public:
  explicit SelectionOnDevice(const Selection& host) : index_(host.index), count_(host.count), space_(host.space) {}

  [[nodiscard]] Selection get() const { return {index_.view(), count_.view(), space_}; }
  void replace(const Selection& other) const {
    index_.replace(other.index);
    count_.replace(other.count);
  }

 private:
  OnDevice<const std::int32_t> index_;
  OnDevice<const std::int32_t> count_;
  SelectionSpace space_;
};

}  // namespace headrace::test
