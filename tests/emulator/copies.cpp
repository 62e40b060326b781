// SPDX-License-Identifier: Apache-2.0
#include "copies.h"

#include <cstring>
#include <string>
#include <utility>

#include "adversary.h"
#include "barriers.h"
#include "fault.h"

namespace headrace::emulator {
namespace {

std::size_t at(int thread) { return static_cast<std::size_t>(thread); }

void perform(const Copy& copy) {
  if (copy.from == nullptr) {
    std::memset(copy.to, 0, copy.bytes);
  } else {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
}

}  // namespace

void AsyncCopies::begin(int threads) {
  started_.assign(at(threads), {});
  under_way_.assign(at(threads), {});
  busy_.clear();
}

void AsyncCopies::start(int thread, const Copy& copy) {
  if (reinterpret_cast<std::uintptr_t>(copy.to) % copy.bytes != 0 ||
      reinterpret_cast<std::uintptr_t>(copy.from) % copy.bytes != 0) {
    throw Fault("an asynchronous copy of " + std::to_string(copy.bytes) + " bytes is not aligned to them");
  }
  if (adversary().at_once()) {
    perform(copy);
  } else {
    started_[at(thread)].push_back(copy);
  }
}

void AsyncCopies::arrive_after(int thread, std::uint64_t* barrier) {
  static_cast<void>(SharedBarrier(barrier));
  if (under_way_[at(thread)].empty()) {
    busy_.push_back(thread);
  }
  under_way_[at(thread)].push_back({std::exchange(started_[at(thread)], {}), barrier});
  if (under_way_[at(thread)].size() == 1 && adversary().at_once()) {
    busy_.pop_back();
    end_batch(thread);
  }
}

void AsyncCopies::end_batch(int thread) {
  const Batch batch = std::move(under_way_[at(thread)].front());
  under_way_[at(thread)].pop_front();
  for (const Copy& copy : batch.copies) {
    perform(copy);
  }
  SharedBarrier(batch.barrier).arrive();
}

void AsyncCopies::step() {
  for (const int thread : busy_) {
    if (adversary().meanwhile()) {
      end_batch(thread);
    }
  }
  std::erase_if(busy_, [&](int thread) { return under_way_[at(thread)].empty(); });
}

bool AsyncCopies::force() {
  if (busy_.empty()) {
    return false;
  }
  end_batch(busy_[adversary().below(static_cast<std::uint32_t>(busy_.size()))]);
  std::erase_if(busy_, [&](int thread) { return under_way_[at(thread)].empty(); });
  return true;
}

}  // namespace headrace::emulator
