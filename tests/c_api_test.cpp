// SPDX-License-Identifier: Apache-2.0
//
// What the C interface does with structures of other sizes, with views, and without memory. tests/c_api/frozen_test.c
// runs its functions.
#include "headrace/c_api.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "capi/errors.h"
#include "capi/structs.h"
#include "capi/views.h"
#include "support/counted_allocations.h"
#include "support/errors.h"

namespace headrace::capi {
namespace {

/// A structure that has grown by `added` since its first version.
struct Grown {
  std::size_t size;
  std::int64_t first;
  std::int64_t added;
};

}  // namespace

template <>
inline constexpr std::size_t kFirstBytes<Grown> = 16;

namespace {

using test::throws_error;

/// Ends what `allowed` refuses, however a test goes on.
struct Scarce {
  explicit Scarce(std::int64_t allocations) { test::allowed = allocations; }
  ~Scarce() { test::allowed = std::numeric_limits<std::int64_t>::max(); }
  Scarce(const Scarce&) = delete;
  Scarce& operator=(const Scarce&) = delete;
};

HrAttention small_attention() {
  return {.size = sizeof(HrAttention),
          .num_heads = 2,
          .kv_lora_rank = 16,
          .qk_nope_head_dim = 8,
          .qk_rope_head_dim = 0,
          .v_head_dim = 8,
          .scale = 1.0,
          .topk = 0,
          .pool = 0,
          .tail = 0,
          .rule = HR_RULE_NONE,
          .compute = HR_FLOAT32,
          .format = HR_CACHE_FLOAT32,
          .space = HR_REQUEST_POSITION,
          .reserved = 0};
}

TEST(CApiStructs, AFieldThatTheCallerDoesNotHaveIsZero) {
  const Grown from{.size = 16, .first = 3, .added = 4};  // to the caller, `added` is somebody else's memory
  const Grown got = read_struct("grown", &from);
  EXPECT_EQ(got.first, 3);
  EXPECT_EQ(got.added, 0);
}

TEST(CApiStructs, AFieldThatTheCallerHasIsRead) {
  const Grown from{.size = sizeof(Grown), .first = 3, .added = 4};
  EXPECT_EQ(read_struct("grown", &from).added, 4);
}

TEST(CApiStructs, WhatIsNotKnownMustBeZero) {
  struct Newer {
    Grown grown;
    std::array<char, 12> beyond;
  };
  Newer from{.grown = {.size = offsetof(Newer, beyond) + 12, .first = 3, .added = 4}, .beyond = {}};
  EXPECT_EQ(read_struct("grown", &from.grown).added, 4);
  from.beyond[11] = 7;
  EXPECT_TRUE(throws_error([&] { static_cast<void>(read_struct("grown", &from.grown)); },
                           "grown: expected zeros beyond the 24 bytes that this version of the library knows, got 7 in "
                           "byte 35"));
  EXPECT_THROW(static_cast<void>(read_struct("grown", &from.grown)), UnsupportedError);
  from.grown.size -= 1;  // the odd byte is no part of it
  EXPECT_EQ(read_struct("grown", &from.grown).first, 3);
}

TEST(CApiStructs, ASizeThatWasNeverSetIsRefused) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{15}, std::size_t{65537}, ~std::size_t{0}}) {
    const Grown from{.size = size, .first = 0, .added = 0};
    EXPECT_TRUE(
        throws_error([&] { static_cast<void>(read_struct("grown", &from)); },
                     "grown.size: expected the bytes of the structure, from 16 to 65536, got " + std::to_string(size)));
  }
  const Grown* const none = nullptr;
  EXPECT_TRUE(
      throws_error([&] { static_cast<void>(read_struct("grown", none)); }, "grown: expected an address, got null"));
}

TEST(CApiViews, RefuseWhatIsNone) {
  alignas(8) std::array<char, 64> memory{};
  HrView view{.data = memory.data(), .dtype = HR_INT32, .rank = 2, .shape = {2, 3, 0, 0}, .stride = {3, 1, 0, 0}};
  const View<std::int32_t> good = required_view<std::int32_t>("v", view);
  EXPECT_EQ(good.dim(1), 3);
  EXPECT_EQ(good.stride(0), 3);

  const auto refused = [&](const HrView& odd, const std::string& text) {
    return throws_error([&] { static_cast<void>(required_view("v", odd)); }, text);
  };
  HrView odd = view;
  odd.data = memory.data() + 2;
  EXPECT_TRUE(
      refused(odd, "v: expected an address divisible by the 4 bytes of an element, got one with a remainder of 2"));
  odd.data = nullptr;
  EXPECT_TRUE(refused(odd, "v: expected an address, got null"));
  odd.shape[1] = 0;
  EXPECT_EQ(required_view("v", odd).dim(1), 0);  // nothing lies there
  odd = view;
  odd.shape[0] = -1;
  EXPECT_TRUE(refused(odd, "v: expected sizes of at least 0, got -1"));
  odd = view;
  odd.dtype = 0;
  EXPECT_TRUE(refused(odd, "v: expected one of HR_FLOAT32 (1)"));
  for (const int rank : {-1, 0, 5}) {
    odd = view;
    odd.rank = rank;
    EXPECT_TRUE(refused(odd, "v: expected 1 to 4 dimensions, got " + std::to_string(rank)));
  }
  EXPECT_TRUE(refused({}, "v: expected a view, got none"));
  EXPECT_TRUE(optional_view("v", {}).empty());
  EXPECT_TRUE(
      throws_error([&] { static_cast<void>(optional_view<float>("v", view)); }, "v: expected float32, got int32"));
  EXPECT_TRUE(throws_error(
      [&] {
        static_cast<void>(memory_of("m", {nullptr, 1}));
      },
      "m: expected an address, got null"));
  EXPECT_TRUE(throws_error([&] { static_cast<void>(memory_of("m", {memory.data(), -1})); }, "m: expected a size"));
}

TEST(CApiErrors, EveryKindArrives) {
  const auto kind_of = [](const auto& thrown) {
    HrError* const error = guarded([&] { throw thrown; });
    const std::int32_t kind = hr_error_kind(error);
    hr_error_free(error);
    return kind;
  };
  EXPECT_EQ(kind_of(Error("a", "b", "c")), HR_MISUSE);
  EXPECT_EQ(kind_of(UnsupportedError("a", "b", "c")), HR_UNSUPPORTED);
  EXPECT_EQ(kind_of(OutOfMemoryError("a", "b", "c")), HR_OUT_OF_MEMORY);
  EXPECT_EQ(kind_of(DeviceError("a", "b", "c")), HR_DEVICE_FAILURE);
  EXPECT_EQ(kind_of(std::bad_alloc()), HR_OUT_OF_MEMORY);
  EXPECT_EQ(kind_of(std::runtime_error("odd")), HR_INTERNAL);

  HrError* const error = guarded([] { throw DeviceError("a", "b", ""); });
  EXPECT_STREQ(hr_error_argument(error), "a");
  EXPECT_STREQ(hr_error_expected(error), "b");
  EXPECT_STREQ(hr_error_actual(error), "");
  EXPECT_STREQ(hr_error_message(error), "a: expected b, got ");
  hr_error_free(error);
}

// A field that means nothing today may mean something tomorrow.
TEST(CApiFields, WithoutMeaningAreZero) {
  std::int64_t bytes = 0;
  const auto refused = [&](const auto& spoil) {
    HrAttention attention = small_attention();
    spoil(attention);
    HrError* const error = hr_cache_row_bytes(&attention, &bytes);
    const std::string argument = error == nullptr ? "none" : hr_error_argument(error);
    hr_error_free(error);
    return argument;
  };
  EXPECT_EQ(refused([](HrAttention&) {}), "none");
  EXPECT_EQ(refused([](HrAttention& a) { a.topk = 8; }), "attention.topk");
  EXPECT_EQ(refused([](HrAttention& a) { a.pool = 4; }), "attention.pool");
  EXPECT_EQ(refused([](HrAttention& a) { a.rule = HR_RULE_LIGHTNING, a.topk = 8, a.tail = 1; }), "attention.tail");
  const HrIndexer indexer{
      .size = sizeof(HrIndexer), .num_heads = 2, .head_dim = 8, .topk = 8, .pool = 0, .tail = 1, .compute = HR_FLOAT32};
  HrError* const error = hr_select_width(&indexer, &bytes);
  ASSERT_NE(error, nullptr);
  EXPECT_STREQ(hr_error_argument(error), "indexer.tail");
  hr_error_free(error);
}

// Only what is all zero is left out: the rest is a view that somebody forgot a part of.
TEST(CApiViews, WithOnlyAPartAreRefused) {
  EXPECT_TRUE(optional_view("sink", HrView{}).empty());
  HrView part{};
  part.dtype = HR_FLOAT32;
  part.shape[0] = 4;
  EXPECT_TRUE(throws_error([&] { static_cast<void>(optional_view("sink", part)); }, "1 to 4 dimensions"));
}

// Whichever allocation fails, the call says so and leaves nothing behind.
TEST(CApiErrors, OutOfMemoryAtEveryAllocation) {
  const HrAttention attention = small_attention();
  const std::array<std::int32_t, 2> lengths{5, 9};
  const HrBatch batch{.size = sizeof(HrBatch),
                      .requests = 2,
                      .query_len = lengths.data(),
                      .seq_len_bound = lengths.data(),
                      .exact = 1,
                      .reserved = 0};
  std::int64_t refused = 0;
  for (HrPlan* plan = nullptr; plan == nullptr; ++refused) {
    HrError* error = nullptr;
    {
      const Scarce scarce(refused);
      error = hr_plan_create(&attention, &batch, nullptr, nullptr, &plan);
    }
    if (error != nullptr) {
      ASSERT_EQ(hr_error_kind(error), HR_OUT_OF_MEMORY) << hr_error_message(error);
      ASSERT_EQ(plan, nullptr);
    }
    hr_error_free(error);
    hr_plan_free(error == nullptr ? plan : nullptr);
    ASSERT_LT(refused, 10000);
  }
  EXPECT_GT(refused, 3);
}

// Where there is no memory for an error either, there is one all the same.
TEST(CApiErrors, AnErrorNeedsNoMemory) {
  HrAttention attention = small_attention();
  attention.rule = 0;
  std::int64_t bytes = 0;
  std::int64_t refused = 0;
  for (std::int32_t kind = 0; kind != HR_MISUSE; ++refused) {
    HrError* error = nullptr;
    {
      const Scarce scarce(refused);
      error = hr_cache_row_bytes(&attention, &bytes);
    }
    ASSERT_NE(error, nullptr);
    kind = hr_error_kind(error);
    ASSERT_TRUE(kind == HR_MISUSE || kind == HR_OUT_OF_MEMORY) << hr_error_message(error);
    ASSERT_NE(std::string(hr_error_message(error)), "");
    hr_error_free(error);
  }
  EXPECT_GT(refused, 1);
}

}  // namespace
}  // namespace headrace::capi
