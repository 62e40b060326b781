// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace headrace::device::cuda {

/// Memory of the current device, aligned to 256 bytes, with no defined content at first. Copies wait for the device;
/// they are for set-up and for tests, not for a step.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// @throws Error when the device has not that much
  explicit DeviceBuffer(std::int64_t bytes);

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return bytes_; }
  /// Sets every byte.
  void fill(std::byte value) const;
  /// Host to device, from byte `offset` on. @throws Error where it does not fit
  void upload(std::span<const std::byte> from, std::int64_t offset = 0) const;
  /// Device to host.
  void download(std::span<std::byte> to, std::int64_t offset = 0) const;

 private:
  struct Free {
    void operator()(std::byte* data) const noexcept;
  };
  void expect_inside(std::int64_t offset, std::size_t bytes) const;

  std::unique_ptr<std::byte[], Free> data_;
  std::int64_t bytes_ = 0;
};

/// An array of T on the device.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::int64_t size) : buffer_(size * static_cast<std::int64_t>(sizeof(T))) {}
  /// A copy of an array of the host.
  explicit DeviceArray(std::span<const T> values) : DeviceArray(static_cast<std::int64_t>(values.size())) {
    upload(values);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(std::span<const T>(values)) {}

  [[nodiscard]] T* data() const noexcept { return reinterpret_cast<T*>(buffer_.data()); }
  [[nodiscard]] std::int64_t size() const noexcept {
    return buffer_.size_bytes() / static_cast<std::int64_t>(sizeof(T));
  }
  [[nodiscard]] const DeviceBuffer& bytes() const noexcept { return buffer_; }
  void upload(std::span<const T> values) const { buffer_.upload(std::as_bytes(values)); }
  [[nodiscard]] std::vector<T> download() const {
    std::vector<T> values(static_cast<std::size_t>(size()));
    buffer_.download(std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  DeviceBuffer buffer_;
};

}  // namespace headrace::device::cuda
