// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "case_on_device.h"
#include "device/cuda/memory.h"
#include "headrace/cuda.h"
#include "uploaded_plan.h"

namespace headrace::test {

/// Runs rows [begin, end) of a request as a batch of their own.
inline void run_alone(const AttentionCase& problem, const CaseOnDevice& on_device, Path path, std::int64_t request,
                      std::int64_t begin, std::int64_t end, const Outputs& outputs) {
  const RequestShape& shape = problem.spec().requests[static_cast<std::size_t>(request)];
  const std::vector<std::int32_t> query_len = {static_cast<std::int32_t>(end - begin)};
  const std::vector<std::int32_t> seq_len = {static_cast<std::int32_t>(shape.context_len + end)};
  const Plan made = plan_on_gpu(problem, {query_len, seq_len, true}, path);
  const device::cuda::DeviceArray<std::int32_t> query_start(std::vector<std::int32_t>{0, query_len[0]});
  const device::cuda::DeviceArray<std::int32_t> lengths(seq_len);
  const std::int64_t first = problem.begin_of(request) + begin;
  const std::int64_t last = problem.begin_of(request) + end;
  Inputs inputs = on_device.inputs();
  inputs.q = inputs.q.slice(first, last);
  inputs.requests = {View<const std::int32_t>(query_start.data(), {2}), View<const std::int32_t>(lengths.data(), {1}),
                     inputs.requests.block_table.slice(request, request + 1)};
  inputs.selection.index = inputs.selection.index.slice(first, last);
  if (!inputs.selection.count.empty()) {
    inputs.selection.count = inputs.selection.count.slice(first, last);
  }
  const device::cuda::DeviceBuffer workspace(made.workspace_bytes());
  workspace.fill(std::byte{0xff});
  const UploadedPlan uploaded(made);
  attend(uploaded.get(), on_device.weights(), inputs, {outputs.out.slice(first, last), outputs.lse.slice(first, last)},
         {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, Stream{});
  device::cuda::synchronize(Stream{});
}

}  // namespace headrace::test
