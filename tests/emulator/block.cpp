// SPDX-License-Identifier: Apache-2.0
#include "block.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "adversary.h"
#include "fault.h"
#include "fibers.h"

// The section of all __shared__ variables (include/device_language.h), between names that the linker gives it.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming,cppcoreguidelines-avoid-non-const-global-variables)
extern "C" {
extern std::byte __start_emulated_shared[];
extern std::byte __stop_emulated_shared[];
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming,cppcoreguidelines-avoid-non-const-global-variables)

namespace headrace::emulator {
namespace {

constexpr std::size_t kSharedAlignment = 1024;

/// What memory that nobody has written holds: NaN in every format.
constexpr int kNan = 0xff;

}  // namespace

Block& this_block() {
  static Block instance;
  return instance;
}

void Block::run_grid(const Configuration& configuration, const std::function<void()>& kernel) {
  grid_ = configuration.grid;
  threads_ = configuration.block;
  shared_bytes_ = configuration.shared_bytes;
  memory_.resize(shared_bytes_ + kSharedAlignment);
  shared_ = memory_.data();
  shared_ += kSharedAlignment - reinterpret_cast<std::uintptr_t>(shared_) % kSharedAlignment;
  std::vector<int> order(static_cast<std::size_t>(grid_.x) * grid_.y);
  std::iota(order.begin(), order.end(), 0);
  adversary().shuffle(order);
  for (const int number : order) {
    const auto block = static_cast<unsigned>(number);
    index_ = {block % grid_.x, block / grid_.x, 0};
    begin();
    run_fibers(
        static_cast<int>(threads_.x), [&](int thread) { run_thread(thread, kernel); }, *this);
  }
}

void Block::begin() {
  const auto threads = static_cast<int>(threads_.x);
  warps_.assign(static_cast<std::size_t>((threads + kWarpThreads - 1) / kWarpThreads), Warp());
  for (std::size_t i = 0; i < warps_.size(); ++i) {
    warps_[i].begin(std::min(kWarpThreads, threads - static_cast<int>(i) * kWarpThreads));
  }
  barrier_.begin(threads);
  named_barriers_.fill({});
  copies_.begin(threads);
  products_.begin(threads);
  std::memset(shared_, kNan, shared_bytes_);
  std::memset(__start_emulated_shared, kNan,
              static_cast<std::size_t>(__stop_emulated_shared - __start_emulated_shared));
}

void Block::run_thread(int thread, const std::function<void()>& kernel) {
  kernel();
  products_.expect_waited_for(thread);
  warps_[static_cast<std::size_t>(thread / kWarpThreads)].thread_returned();
  barrier_.thread_returned();
}

NamedBarrier& Block::named_barrier(std::uint32_t id) {
  if (id >= named_barriers_.size()) {
    throw Fault("there is no named barrier " + std::to_string(id));
  }
  return named_barriers_[id];
}

std::uint32_t Block::shared_offset(const void* address) const {
  const std::ptrdiff_t offset = static_cast<const std::byte*>(address) - shared_;
  if (offset < 0 || static_cast<std::size_t>(offset) >= shared_bytes_) {
    throw Fault("an address outside dynamic shared memory where one inside is needed");
  }
  return static_cast<std::uint32_t>(offset);
}

std::byte* Block::shared(std::uint32_t offset, std::size_t bytes) const {
  if (offset + bytes > shared_bytes_) {
    throw Fault("byte " + std::to_string(offset) + " of " + std::to_string(shared_bytes_) + " of shared memory");
  }
  return shared_ + offset;
}

void Block::step() {
  copies_.step();
  products_.step();
}

bool Block::force() { return copies_.force(); }

}  // namespace headrace::emulator
