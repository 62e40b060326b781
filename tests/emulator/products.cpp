// SPDX-License-Identifier: Apache-2.0
#include "products.h"

#include <bit>
#include <cstring>
#include <utility>

#include "adversary.h"
#include "block.h"
#include "fault.h"

namespace headrace::emulator {
namespace {

constexpr int kDepth = 16;  // of one product
constexpr int kWarpGroup = 128;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

float widen(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }

/// A field of a description, in which addresses are in units of 16 bytes.
std::uint32_t address_at(std::uint64_t description, int bit) {
  return static_cast<std::uint32_t>(description >> bit & 0x3fffU) << 4;
}

/// Row r, in {0, 1}, of a thread: 8 r below its first one.
using Rows = std::array<std::array<float, kDepth>, 2>;

/// The first row of D that a thread holds.
int first_row(int thread) { return thread % kWarpGroup / 32 * 16 + thread % 32 / 4; }

Rows read_left(const Product& product, int thread) {
  Rows rows{};
  for (int r = 0; r < 2; ++r) {
    for (int k = 0; k < kDepth; ++k) {
      float& value = rows[at(r)][at(k)];
      if (product.from_registers) {
        // Thread q of the quad has columns 2 q and 2 q + 1 of rows 0 and 1 in registers 0 and 1, 8 further in 2 and 3.
        const int number = r + k / 8 * 2;
        const std::uint32_t pair = *product.registers[at(k % 8 / 2)][at(number)];
        value = widen(k % 2 == 0 ? pair & 0xffffU : pair >> 16);
      } else {
        value = product.left.at_k_major(first_row(thread) + 8 * r, k);
      }
    }
  }
  return rows;
}

void perform(const Product& product, int thread) {
  const Rows left = read_left(product, thread);
  for (int j = 0; j < product.columns / 8; ++j) {
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * j + 2 * (thread % 4) + c;
      float sums[2] = {};
      for (int k = 0; k < kDepth; ++k) {
        const float right =
            product.right_is_mn_major ? product.right.at_mn_major(column, k) : product.right.at_k_major(column, k);
        sums[0] += left[0][at(k)] * right;
        sums[1] += left[1][at(k)] * right;
      }
      for (int r = 0; r < 2; ++r) {
        float& d = product.accumulators[4 * j + 2 * r + c];
        d = (product.adds ? d : 0.0F) + sums[r];
      }
    }
  }
}

}  // namespace

SharedMatrix::SharedMatrix(std::uint64_t description)
    : start_(address_at(description, 0)), leading_(address_at(description, 16)), stride_(address_at(description, 32)) {
  constexpr std::uint64_t kSwizzle128 = 1;
  if (description >> 62 != kSwizzle128 || (description >> 49 & 7U) != 0) {
    throw Fault("a product of a matrix that is not swizzled by 128 bytes");
  }
}

float SharedMatrix::read(std::uint32_t offset) {
  const std::uint32_t swizzled = offset ^ (offset >> 7 & 7U) << 4;
  std::uint16_t bits = 0;
  std::memcpy(&bits, this_block().shared(swizzled, sizeof(bits)), sizeof(bits));
  return widen(bits);
}

float SharedMatrix::at_k_major(int row, int k) const {
  const auto r = static_cast<std::uint32_t>(row);
  return read(start_ + r / 8 * stride_ + r % 8 * 128 + static_cast<std::uint32_t>(k) * 2);
}

float SharedMatrix::at_mn_major(int column, int k) const {
  const auto n = static_cast<std::uint32_t>(column);
  const auto row = static_cast<std::uint32_t>(k);
  return read(start_ + n / 64 * leading_ + row / 8 * stride_ + row % 8 * 128 + n % 64 * 2);
}

void AsyncProducts::begin(int threads) {
  threads_.assign(at(threads), {});
  under_way_ = 0;
}

void AsyncProducts::learn(int thread) { threads_[at(thread)].proxy_fenced = false; }

void AsyncProducts::fence_proxy(int thread) { threads_[at(thread)].proxy_fenced = true; }

void AsyncProducts::fence(int thread) { threads_[at(thread)].fenced = true; }

void AsyncProducts::start(int thread, const Product& product) {
  OfThread& own = threads_[at(thread)];
  if (!own.fenced) {
    throw Fault("a product without warpgroup_arrive before its group");
  }
  if (!own.proxy_fenced) {
    throw Fault("a product without fence_view_async_shared after a barrier");
  }
  own.open.push_back(product);
}

void AsyncProducts::commit(int thread) {
  OfThread& own = threads_[at(thread)];
  own.fenced = false;
  own.committed.push_back(std::exchange(own.open, {}));
  ++under_way_;
  while (!own.committed.empty() && adversary().at_once()) {
    end_group(thread, own);
  }
}

void AsyncProducts::wait(int thread, int groups) {
  OfThread& own = threads_[at(thread)];
  while (static_cast<int>(own.committed.size()) > groups) {
    end_group(thread, own);
  }
}

void AsyncProducts::expect_waited_for(int thread) const {
  const OfThread& own = threads_[at(thread)];
  if (!own.open.empty() || !own.committed.empty()) {
    throw Fault("a thread returned whose products may still be under way");
  }
}

void AsyncProducts::end_group(int thread, OfThread& own) {
  for (const Product& product : own.committed.front()) {
    perform(product, thread);
  }
  own.committed.pop_front();
  --under_way_;
}

void AsyncProducts::step() {
  for (std::size_t thread = 0; under_way_ > 0 && thread < threads_.size(); ++thread) {
    if (!threads_[thread].committed.empty() && adversary().meanwhile()) {
      end_group(static_cast<int>(thread), threads_[thread]);
    }
  }
}

}  // namespace headrace::emulator
