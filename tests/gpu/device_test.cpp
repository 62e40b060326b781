// SPDX-License-Identifier: Apache-2.0
// Memory, streams and the probe.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/probe.h"
#include "device/cuda/stream.h"
#include "device/cuda/timer.h"
#include "headrace/error.h"
#include "support/errors.h"

namespace headrace {
namespace {

using device::cuda::DeviceArray;
using device::cuda::DeviceBuffer;

TEST(Device, IsWhatTheKernelsAreFor) {
  const auto gpu = device::cuda::probe(0);
  EXPECT_TRUE(gpu.is_sm90());
  EXPECT_FALSE(gpu.name.empty());
  EXPECT_GE(gpu.multiprocessors, 1);
  EXPECT_GE(gpu.shared_bytes_a_block, 227 * 1024);
  EXPECT_GT(gpu.l2_bytes, 0);
  EXPECT_GE(gpu.driver_version, gpu.runtime_version);
}

TEST(Device, UnknownOnesAreRefused) {
  EXPECT_TRUE(test::throws_error([] { device::cuda::make_current(device::cuda::device_count()); }, "cuda:0"));
  EXPECT_TRUE(test::throws_error([] { (void)device::cuda::probe(-1); }, "cuda:-1"));
}

TEST(DeviceMemory, HoldsWhatWasPutThere) {
  const std::vector<int> values = {3, 1, 4, 1, 5, 9, 2, 6};
  const DeviceArray<int> array(values);
  EXPECT_EQ(array.download(), values);
  array.bytes().fill(std::byte{0});
  array.bytes().upload(std::as_bytes(std::span(values).first(2)), 8);
  EXPECT_EQ(array.download(), (std::vector<int>{0, 0, 3, 1, 0, 0, 0, 0}));
}

TEST(DeviceMemory, RangesOutsideAreRefused) {
  const DeviceBuffer buffer(16);
  std::vector<std::byte> bytes(8);
  EXPECT_TRUE(test::throws_error([&] { buffer.upload(bytes, 9); }, "8 bytes from 9"));
  EXPECT_TRUE(test::throws_error([&] { buffer.download(bytes, -1); }, "8 bytes from -1"));
  EXPECT_TRUE(test::throws_error([] { DeviceBuffer(-1); }, "-1"));
}

TEST(DeviceMemory, MoreThanThereIsIsRefusedAndForgotten) {
  EXPECT_TRUE(test::throws_error([] { DeviceBuffer(std::int64_t{1} << 50); }, "not that much left"));
  const device::cuda::OwnedStream stream;
  EXPECT_NO_THROW(device::cuda::synchronize(stream));
}

TEST(DeviceMemory, MayBeEmpty) {
  const DeviceArray<int> array(0);
  EXPECT_EQ(array.size(), 0);
  EXPECT_TRUE(array.download().empty());
}

TEST(DeviceTimer, MeasuresNoNegativeTime) {
  const device::cuda::OwnedStream stream;
  const device::cuda::Timer timer;
  timer.start(stream);
  timer.stop(stream);
  EXPECT_GE(timer.milliseconds(), 0.0);
}

TEST(DeviceMemory, ErrorsOfCudaHaveTheirKinds) {
  const DeviceBuffer buffer(16);
  EXPECT_THROW(buffer.download({static_cast<std::byte*>(nullptr), 4}), DeviceError);
  // CUDA forgets the other one with this.
  EXPECT_THROW(DeviceBuffer(std::int64_t{1} << 50), OutOfMemoryError);
  EXPECT_NO_THROW(buffer.fill(std::byte{1}));
}

}  // namespace
}  // namespace headrace
