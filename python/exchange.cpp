// SPDX-License-Identifier: Apache-2.0
#include "dl_api.h"
#include "dlpack.h"

namespace {

/// The interface in the version that is known here; null where the owner has none.
const HrDlExchange* known(const void* exchange) noexcept {
  const auto* found = static_cast<const HrDlExchange*>(exchange);
  while (found != nullptr && found->major != HR_DLPACK_MAJOR) {
    found = found->older;
  }
  return found;
}

}  // namespace

int32_t hr_dl_knows_exchange(const void* exchange) {
  const HrDlExchange* const found = known(exchange);
  return found != nullptr && found->tensor_from_object != nullptr && found->work_stream != nullptr ? 1 : 0;
}

int32_t hr_dl_lend(const void* exchange, void* const* objects, int32_t count, HrDlTensor* lent, HrTensor* tensors) {
  const HrDlExchange& found = *known(exchange);
  for (int32_t i = 0; i < count; ++i) {
    if (objects[i] == nullptr) {
      tensors[i] = {nullptr, HR_BARE};
      continue;
    }
    if (found.tensor_from_object(objects[i], &lent[i]) != 0) {
      return i;
    }
    tensors[i] = {&lent[i], HR_BARE};
  }
  return -1;
}

int32_t hr_dl_work_stream(const void* exchange, int32_t ordinal, int64_t* stream) {
  void* handle = nullptr;
  const int32_t status = known(exchange)->work_stream(HR_DL_CUDA, ordinal, &handle);
  *stream = static_cast<int64_t>(reinterpret_cast<intptr_t>(handle));
  return status;
}
