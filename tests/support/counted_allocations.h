// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>

/// Counts what a program takes from the heap, the library in it included, and refuses it when told to: replaces
/// operator new. For one file of a program.
namespace headrace::test {

inline std::atomic<std::size_t> allocations{0};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

/// Allocations that still succeed.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
inline std::atomic<std::int64_t> allowed{std::numeric_limits<std::int64_t>::max()};

inline void* allocate(std::size_t bytes) {
  ++allocations;
  if (allowed.fetch_sub(1) <= 0) {
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(std::max<std::size_t>(bytes, 1))) {  // NOLINT(cppcoreguidelines-no-malloc)
    return memory;
  }
  throw std::bad_alloc();
}

}  // namespace headrace::test

// Not inline: GCC would see free() given what a call of operator new returned, and warn of it.
// NOLINTBEGIN(cppcoreguidelines-no-malloc,misc-definitions-in-headers)
[[gnu::noinline]] void* operator new(std::size_t bytes) { return headrace::test::allocate(bytes); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return headrace::test::allocate(bytes); }
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  try {
    return headrace::test::allocate(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
// NOLINTEND(cppcoreguidelines-no-malloc,misc-definitions-in-headers)
