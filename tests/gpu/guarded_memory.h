// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "device/cuda/memory.h"
#include "headrace/view.h"

namespace headrace::test {

/// Elements from a view's first to one past its last, gaps included.
template <class T>
std::int64_t reach_of(const View<T>& view) {
  if (view.size() == 0) {
    return 0;
  }
  std::int64_t last = 0;
  for (int i = 0; i < view.rank(); ++i) {
    last += (view.dim(i) - 1) * view.stride(i);
  }
  return last + 1;
}

/// The guard that an input has: none, so that a sanitizer notices whoever reads past its end, or enough to stay within
/// what has been allocated, filled with what would show in a result.
enum class Guard : std::int64_t { none = 0, wide = std::int64_t{1} << 18 };

/// Memory of the device between two guards, all of it filled with one byte at first.
class GuardedMemory {
 public:
  GuardedMemory() = default;
  GuardedMemory(std::int64_t bytes, Guard guard, std::byte filling)
      : bytes_(bytes),
        guard_(static_cast<std::int64_t>(guard)),
        filling_(filling),
        memory_(std::max<std::int64_t>(bytes + 2 * guard_, 1)) {
    memory_.fill(filling);
  }

  [[nodiscard]] std::byte* data() const noexcept { return memory_.data() + guard_; }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return bytes_; }
  void upload(std::span<const std::byte> from) const { memory_.upload(from, guard_); }
  [[nodiscard]] std::vector<std::byte> download() const {
    std::vector<std::byte> all(static_cast<std::size_t>(bytes_));
    memory_.download(all, guard_);
    return all;
  }
  void refill() const { memory_.fill(filling_); }

  /// Where a byte that `may_change(offset)` does not allow is another than the filling, if anywhere. Those of the
  /// guards have offsets below 0 and from size_bytes() on.
  template <class MayChange>
  [[nodiscard]] std::optional<std::string> damage(const MayChange& may_change) const {
    std::vector<std::byte> all(static_cast<std::size_t>(bytes_ + 2 * guard_));
    memory_.download(all);
    const auto begin = all.begin() + guard_;
    for (auto at = all.begin(); at < all.end(); ++at) {
      at = std::find_if(at, all.end(), [&](std::byte byte) { return byte != filling_; });
      const std::int64_t offset = at - begin;
      if (at < all.end() && !(offset >= 0 && offset < bytes_ && may_change(offset))) {
        return "byte " + std::to_string(offset) + " of " + std::to_string(bytes_) + " was overwritten";
      }
      if (at == all.end()) {
        break;
      }
    }
    return std::nullopt;
  }

 private:
  std::int64_t bytes_ = 0;
  std::int64_t guard_ = 0;
  std::byte filling_{};
  device::cuda::DeviceBuffer memory_;
};

/// What a kernel reads: a copy of a view's memory, with the same shape and strides.
template <class T>
class GuardedInput {
 public:
  GuardedInput() = default;
  /// @param filling  of the guards: what would show in a result
  GuardedInput(const View<const T>& host, Guard guard, std::byte filling)
      : host_(host), memory_(reach_of(host) * static_cast<std::int64_t>(sizeof(T)), guard, filling) {
    put({host.data(), static_cast<std::size_t>(reach_of(host))});
  }

  /// Puts other values in the place of the view's, gaps included.
  void put(std::span<const T> values) const { memory_.upload(std::as_bytes(values)); }
  [[nodiscard]] View<const T> view() const {
    return host_.empty() ? View<const T>()
                         : View<const T>(reinterpret_cast<const T*>(memory_.data()), host_.rank(), host_.shape(),
                                         host_.strides());
  }

 private:
  View<const T> host_;
  GuardedMemory memory_;
};

/// What a kernel writes: a view whose gaps and surroundings must stay as they are.
template <class T>
class GuardedOutput {
 public:
  static constexpr std::byte kFilling{0xa5};

  GuardedOutput() = default;
  GuardedOutput(int rank, const Dims& shape, const Dims& strides)
      : shape_(nullptr, rank, shape, strides),
        memory_(reach_of(shape_) * static_cast<std::int64_t>(sizeof(T)), Guard::wide, kFilling) {}

  [[nodiscard]] View<T> view() const {
    return shape_.empty()
               ? View<T>()
               : View<T>(reinterpret_cast<T*>(memory_.data()), shape_.rank(), shape_.shape(), shape_.strides());
  }
  /// Where something outside the first `rows` rows was written, if anywhere.
  [[nodiscard]] std::optional<std::string> damage(std::int64_t rows) const {
    const std::vector<bool> own = elements(0, rows);
    return memory_.damage([&](std::int64_t byte) { return own[static_cast<std::size_t>(byte) / sizeof(T)]; });
  }
  /// The bytes of rows [begin, end), one element after the other.
  [[nodiscard]] std::vector<std::byte> rows(std::int64_t begin, std::int64_t end) const {
    const std::vector<std::byte> all = memory_.download();
    const std::vector<bool> own = elements(begin, end);
    std::vector<std::byte> result;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (own[i / sizeof(T)]) {
        result.push_back(all[i]);
      }
    }
    return result;
  }
  void refill() const { memory_.refill(); }

 private:
  [[nodiscard]] std::vector<bool> elements(std::int64_t begin, std::int64_t end) const {
    std::vector<bool> own(static_cast<std::size_t>(reach_of(shape_)));
    const auto dim = [&](int i) { return i < shape_.rank() ? shape_.dim(i) : 1; };
    for (std::int64_t a = begin; a < end && shape_.rank() > 0; ++a) {
      for (std::int64_t b = 0; b < dim(1); ++b) {
        for (std::int64_t c = 0; c < dim(2); ++c) {
          own[static_cast<std::size_t>(a * shape_.stride(0) + b * shape_.stride(1) + c * shape_.stride(2))] = true;
        }
      }
    }
    return own;
  }

  View<T> shape_;
  GuardedMemory memory_;
};

}  // namespace headrace::test
