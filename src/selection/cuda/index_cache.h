// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headrace::selection::cuda {

/// Loads the kernels of append_index_keys (headrace/cuda_indexer.h) onto the current device, so that no append is the
/// first to wait for it. @throws Error
void load_append_index_keys();

}  // namespace headrace::selection::cuda
