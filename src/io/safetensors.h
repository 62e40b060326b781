// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/dtype.h"
#include "io/mapped_file.h"

namespace headrace::io {

/// A tensor of a file: contiguous, row-major, little-endian. Its bytes may lie at any address, so they are copied out,
/// never read in place as a wider type.
struct StoredTensor {
  std::string name;
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  ///< valid as long as the file is open
};

/// "[576, 256]"
[[nodiscard]] std::string shape_to_string(std::span<const std::int64_t> shape);

/// Throws Error naming the tensor unless its shape is `expected`.
void expect_shape(const StoredTensor& tensor, const std::vector<std::int64_t>& expected);

/// A safetensors file. Opening it checks its whole header; tensor data is touched by who reads it.
/// Format: https://github.com/huggingface/safetensors, README, "Format".
class Safetensors {
 public:
  /// Maps the file into memory. @throws Error for a file that cannot be read or breaks the format anywhere
  explicit Safetensors(const std::filesystem::path& path);
  /// A file whose bytes somebody else holds, as long as this object lives.
  /// @param name  how errors call it. @throws Error for bytes that break the format anywhere
  Safetensors(std::span<const std::byte> bytes, std::filesystem::path name);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] bool contains(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  /// In order of name.
  [[nodiscard]] std::vector<std::string> names() const;
  /// A text of the header's `__metadata__`; nothing where it has no such key.
  [[nodiscard]] std::optional<std::string> metadata(std::string_view key) const;
  /// @param types  what the caller can use, for the error of a dtype of the format that Headrace has no use for
  /// @throws Error when there is no such tensor, or its dtype is such a one
  [[nodiscard]] StoredTensor tensor(std::string_view name,
                                    std::string_view types = "F32, BF16, F16, F8_E4M3, F8_E8M0, I32, I64 or U8") const;

 private:
  struct Entry {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::int64_t begin = 0;  // in bytes, from the end of the header
    std::int64_t end = 0;
  };

  void read_header(std::span<const std::byte> bytes);
  void check_layout(std::int64_t data_size) const;

  std::optional<MappedFile> file_;  // absent where somebody else holds the bytes
  std::filesystem::path path_;
  std::span<const std::byte> data_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

}  // namespace headrace::io
