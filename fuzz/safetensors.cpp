// SPDX-License-Identifier: Apache-2.0
// The bytes of a safetensors file. What the header promises must lie inside the file, and reading it as weights must
// work or be refused.
#include "io/safetensors.h"

#include <optional>
#include <string>
#include <vector>

#include "io/float_rows.h"
#include "target.h"

namespace headrace::fuzz {
namespace {

/// Every byte is read, for the sanitizer to see whether it may be; the sum keeps the compiler from leaving that out.
void touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte value : bytes) {
    sum += std::to_integer<unsigned>(value);
  }
  [[maybe_unused]] const volatile unsigned kept = sum;
}

void check_size(const io::StoredTensor& tensor) {
  auto bytes = static_cast<std::size_t>(size_of(tensor.dtype));
  bool empty = false;
  for (const std::int64_t n : tensor.shape) {
    require(n >= 0, "a negative dimension");
    empty = empty || n == 0;
    bytes *= static_cast<std::size_t>(n);  // wraps only beside a 0, or the sizes below would not agree
  }
  require(tensor.bytes.size() == (empty ? 0 : bytes), "a shape that is not the size of its bytes");
}

void read_as_weights(const io::Safetensors& file, const io::StoredTensor& tensor) {
  const std::string scales = tensor.name + (file.contains(tensor.name + "_scale") ? "_scale" : "_scale_inv");
  std::optional<io::FloatRows> weights;
  completes(
      [&] { weights.emplace(tensor, file.contains(scales) ? std::optional(file.tensor(scales)) : std::nullopt); });
  if (!weights || tensor.bytes.empty()) {
    return;
  }
  const std::int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
  std::vector<float> row(static_cast<std::size_t>(tensor.shape.back()));
  for (std::int64_t i = 0; i < rows; ++i) {
    weights->read(i, 0, row);
  }
}

void check(const io::Safetensors& file) {
  for (const std::string& name : file.names()) {
    require(file.contains(name), "a tensor that the file lists and does not contain");
    std::optional<io::StoredTensor> tensor;
    if (completes([&] { tensor = file.tensor(name); })) {
      check_size(*tensor);
      touch(tensor->bytes);
      read_as_weights(file, *tensor);
    }
  }
  require(!completes([&] { static_cast<void>(file.tensor("no such tensor")); }) || file.contains("no such tensor"),
          "a tensor out of nothing");
}

}  // namespace
}  // namespace headrace::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headrace;
  std::optional<io::Safetensors> file;
  if (fuzz::completes([&] { file.emplace(std::as_bytes(std::span(data, size)), "model.safetensors"); })) {
    fuzz::check(*file);
  }
  return 0;
}
