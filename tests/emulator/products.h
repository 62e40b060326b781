// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

/// wgmma: products of a warp group whose operands are read, and whose accumulators are written, at any time between the
/// instruction and the wait for its group. Each thread's part of a product happens by itself.
namespace headrace::emulator {

/// A matrix of bfloat16 in shared memory, described as for the hardware, swizzled by 128 bytes.
class SharedMatrix {
 public:
  SharedMatrix() = default;
  /// @throws Fault for another layout
  explicit SharedMatrix(std::uint64_t description);

  /// Of a matrix whose rows are contiguous along what the product sums over.
  [[nodiscard]] float at_k_major(int row, int k) const;
  /// Of one whose columns are contiguous along what is not summed over.
  [[nodiscard]] float at_mn_major(int column, int k) const;

 private:
  [[nodiscard]] static float read(std::uint32_t offset);

  std::uint32_t start_ = 0;
  std::uint32_t leading_ = 0;
  std::uint32_t stride_ = 0;
};

/// Four threads' registers that hold a thread's two rows of the left operand: four each.
using QuadRegisters = std::array<std::array<const std::uint32_t*, 4>, 4>;

/// A thread's part of D = A B + D, M 64 and K 16: two rows of D.
struct Product {
  int columns = 0;
  bool from_registers = false;
  SharedMatrix left;          ///< K-major
  QuadRegisters registers{};  ///< in place of `left`
  SharedMatrix right;
  bool right_is_mn_major = false;
  bool adds = true;  ///< false: D = A B
  float* accumulators = nullptr;
};

class AsyncProducts {
 public:
  void begin(int threads);
  /// The thread learns of what others have written through the generic proxy. @throws Fault by start() for a product
  /// before fence_proxy()
  void learn(int thread);
  void fence_proxy(int thread);
  /// wgmma.fence. @throws Fault by start() for a group that begins without it
  void fence(int thread);
  void start(int thread, const Product& product);
  void commit(int thread);
  /// Returns when at most `groups` of the thread's are left.
  void wait(int thread, int groups);
  /// When a thread returns. @throws Fault unless its products are done
  void expect_waited_for(int thread) const;

  /// Goes on with some. (Nothing but wait(), which ends them itself, waits for products.)
  void step();

 private:
  using Group = std::vector<Product>;
  struct OfThread {
    bool fenced = false;
    bool proxy_fenced = true;
    Group open;
    std::deque<Group> committed;
  };
  void end_group(int thread, OfThread& own);

  std::vector<OfThread> threads_;
  int under_way_ = 0;  // groups of all threads
};

}  // namespace headrace::emulator
