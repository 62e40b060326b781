// SPDX-License-Identifier: Apache-2.0
#include "tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>

#include "dlpack.h"
#include "headrace/dtype.h"
#include "headrace/error.h"

namespace headrace::python {
namespace {

/// The tensor behind a pointer, and whether its producer lets it be written.
struct Found {
  const HrDlTensor& tensor;
  bool writable;
};

Found find_tensor(const std::string& name, const HrTensor& tensor) {
  if (tensor.form == HR_BARE) {
    return {*static_cast<const HrDlTensor*>(tensor.pointer), true};
  }
  if (tensor.form == HR_CAPSULE) {
    return {static_cast<const HrDlManaged*>(tensor.pointer)->tensor, true};
  }
  const auto* managed = static_cast<const HrDlVersioned*>(tensor.pointer);
  if (managed->major != HR_DLPACK_MAJOR) {
    throw Error(name, "DLPack " + std::to_string(HR_DLPACK_MAJOR), std::to_string(managed->major));
  }
  return {managed->tensor, (managed->flags & HR_DL_READ_ONLY) == 0};
}

std::optional<DType> find_dtype(const HrDlType& type) noexcept {
  struct Known {
    int code;
    int bits;
    DType dtype;
  };
  static constexpr Known kKnown[] = {
      {HR_DL_FLOAT, 32, DType::float32}, {HR_DL_BFLOAT, 16, DType::bfloat16},
      {HR_DL_FLOAT, 16, DType::float16}, {HR_DL_FLOAT8_E4M3FN, 8, DType::float8_e4m3},
      {HR_DL_INT, 32, DType::int32},     {HR_DL_INT, 64, DType::int64},
      {HR_DL_UINT, 8, DType::uint8},
  };
  for (const Known& known : kKnown) {
    if (type.lanes == 1 && type.code == known.code && type.bits == known.bits) {
      return known.dtype;
    }
  }
  return std::nullopt;
}

std::string text_of(const Place& place) {
  return place.cuda ? "memory of CUDA device " + std::to_string(place.ordinal) : "memory of the processor";
}

void expect_place(const std::string& name, const HrDlDevice& device, const Place& place) {
  const bool here = place.cuda ? device.type == HR_DL_CUDA && device.id == place.ordinal
                               : device.type == HR_DL_CPU || device.type == HR_DL_CUDA_HOST;
  if (!here) {
    const bool known = device.type == HR_DL_CUDA || device.type == HR_DL_CPU;
    throw Error(name, text_of(place),
                known ? text_of({device.type == HR_DL_CUDA, device.id})
                      : "memory of DLPack's device type " + std::to_string(device.type));
  }
}

/// A dimension of one entry may come with any stride, and older PyTorch gives it 1: it gets that of dense rows,
/// which suits whoever looks at alignment and overlap.
Dims strides_of(const HrDlTensor& tensor) {
  Dims strides{};
  std::int64_t dense = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    std::int64_t& stride = strides[static_cast<std::size_t>(i)];
    stride = tensor.strides == nullptr || tensor.shape[i] == 1 ? dense : tensor.strides[i];
    dense = stride * tensor.shape[i];
  }
  return strides;
}

AnyView view_of(const std::string& name, const HrDlTensor& tensor, const Place& place) {
  expect_place(name, tensor.device, place);
  const std::optional<DType> dtype = find_dtype(tensor.type);
  if (!dtype) {
    throw Error(name, "float32, bfloat16, float16, float8_e4m3fn, int32, int64 or uint8",
                "DLPack's type code " + std::to_string(tensor.type.code) + " with " + std::to_string(tensor.type.bits) +
                    " bits and " + std::to_string(tensor.type.lanes) + " lanes");
  }
  constexpr int kMaxRank = std::tuple_size_v<Dims>;
  if (tensor.rank < 1 || tensor.rank > kMaxRank) {
    throw Error(name, "1 to " + std::to_string(kMaxRank) + " dimensions", std::to_string(tensor.rank));
  }
  Dims shape{};
  std::copy_n(tensor.shape, tensor.rank, shape.begin());
  std::byte* data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  if (const auto left = reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(size_of(*dtype));
      left != 0) {
    throw Error(name, "an address divisible by the " + std::to_string(size_of(*dtype)) + " bytes of an element",
                "one with a remainder of " + std::to_string(left));
  }
  return AnyView(data, *dtype, tensor.rank, shape, strides_of(tensor));
}

void expect_given(const std::string& name, const HrTensor& tensor) {
  if (tensor.pointer == nullptr) {
    throw Error(name, "a tensor", "none");
  }
}

}  // namespace

ConstAnyView required_input(const std::string& name, const HrTensor& tensor, const Place& place) {
  expect_given(name, tensor);
  return view_of(name, find_tensor(name, tensor).tensor, place);
}

ConstAnyView optional_input(const std::string& name, const HrTensor& tensor, const Place& place) {
  return tensor.pointer == nullptr ? ConstAnyView() : required_input(name, tensor, place);
}

AnyView required_output(const std::string& name, const HrTensor& tensor, const Place& place) {
  expect_given(name, tensor);
  const Found found = find_tensor(name, tensor);
  if (!found.writable) {
    throw Error(name, "a tensor that may be written", "a read-only one");
  }
  return view_of(name, found.tensor, place);
}

AnyView optional_output(const std::string& name, const HrTensor& tensor, const Place& place) {
  return tensor.pointer == nullptr ? AnyView() : required_output(name, tensor, place);
}

}  // namespace headrace::python
