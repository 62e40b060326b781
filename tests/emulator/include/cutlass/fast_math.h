// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace cutlass {

/// Division by a number that the host knows.
class FastDivmod {
 public:
  FastDivmod() = default;
  explicit FastDivmod(int divisor) : divisor_(divisor) {}

  int divmod(int& remainder, int dividend) const {
    remainder = dividend % divisor_;
    return dividend / divisor_;
  }

 private:
  int divisor_ = 1;
};

}  // namespace cutlass
