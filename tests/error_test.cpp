// SPDX-License-Identifier: Apache-2.0
//
// The kinds of errors, and that what is thrown has the right one.
#include "headrace/error.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "headrace/cuda.h"
#include "headrace/plan.h"
#include "headrace/tensor.h"

namespace headrace {
namespace {

template <class Call>
ErrorKind kind_thrown_by(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::misuse;
}

Attention small_attention() {
  return {.geometry = {.num_heads = 2, .kv_lora_rank = 16, .qk_nope_head_dim = 8, .v_head_dim = 8},
          .rule = SelectionRule::lightning(4),
          .scale = 1.0,
          .compute = DType::float32,
          .format = CacheFormat::float32};
}

TEST(Errors, TypesHaveTheirKinds) {
  EXPECT_EQ(Error("a", "b", "c").kind(), ErrorKind::misuse);
  EXPECT_EQ(UnsupportedError("a", "b", "c").kind(), ErrorKind::unsupported);
  EXPECT_EQ(OutOfMemoryError("a", "b", "c").kind(), ErrorKind::out_of_memory);
  EXPECT_EQ(DeviceError("a", "b", "c").kind(), ErrorKind::device_failure);
  EXPECT_STREQ(DeviceError("a", "b", "c").what(), "a: expected b, got c");
}

TEST(Errors, KeepTypeAndTextsForAnotherArgument) {
  EXPECT_THROW(UnsupportedError("a", "b", "c").throw_for("z"), UnsupportedError);
  EXPECT_THROW(OutOfMemoryError("a", "b", "c").throw_for("z"), OutOfMemoryError);
  try {
    DeviceError("a", "b", "c").throw_for("z");
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "z: expected b, got c");
  }
  EXPECT_EQ(kind_thrown_by([] { Error("a", "b", "c").throw_for("z"); }), ErrorKind::misuse);
}

TEST(Errors, WhatCannotRunIsUnsupported) {
  const std::vector<std::int32_t> lengths{10};
  const Batch batch{.query_len = lengths, .seq_len_bound = lengths, .exact = true};
  EXPECT_THROW(static_cast<void>(plan(small_attention(), batch, {}, {.force = Path::dense_mha, .profile = {}})),
               UnsupportedError);
  if (CudaDevice::count() == 0) {
    EXPECT_THROW(CudaDevice(0), UnsupportedError);
  }
}

TEST(Errors, WhatIsWrongIsMisuse) {
  const std::vector<std::int32_t> lengths{-1};
  const Batch batch{.query_len = lengths, .seq_len_bound = lengths};
  EXPECT_EQ(kind_thrown_by([&] { static_cast<void>(plan(small_attention(), batch)); }), ErrorKind::misuse);
}

TEST(Errors, MemoryThatIsNotThereIsOutOfMemory) {
  // More than any address space has.
  constexpr std::int64_t kBytes = std::numeric_limits<std::int64_t>::max() / 4;
  EXPECT_THROW(Tensor(DType::uint8, {kBytes}), OutOfMemoryError);
}

}  // namespace
}  // namespace headrace
