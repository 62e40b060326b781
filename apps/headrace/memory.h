// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace headrace::app {

/// Memory that can be had without swapping, from /proc/meminfo, at most the control group's limit; INT64_MAX
/// where neither can be read.
[[nodiscard]] std::int64_t available_memory();

/// The most memory this process has had resident.
[[nodiscard]] std::int64_t peak_memory();

/// Bytes that are still to be allocated, added up before the first of them is.
class MemoryEstimate {
 public:
  /// count * bytes_each more; what passes 2^63 stays there.
  void add(std::int64_t count, std::int64_t bytes_each) noexcept;
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  /// @throws Error naming `argument` when the machine does not have that much
  void require(std::string_view argument) const;

 private:
  std::int64_t bytes_ = 0;
};

}  // namespace headrace::app
