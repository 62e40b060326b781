// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "headrace/dtype.h"

namespace headrace::test {

/// A folder of its own, removed with everything in it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

void write_file(const std::filesystem::path& path, std::string_view bytes);
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

/// The bytes of a safetensors file with any header and data, right or wrong.
[[nodiscard]] std::string safetensors_bytes(std::string_view header, std::string_view data);

/// Builds a well-formed safetensors file.
class SafetensorsWriter {
 public:
  /// @param dtype  as the format spells it: "BF16"
  void add_bytes(const std::string& name, std::string_view dtype, const std::vector<std::int64_t>& shape,
                 std::string_view bytes);
  template <class T>
  void add(const std::string& name, const std::vector<std::int64_t>& shape, const std::vector<T>& values) {
    add_bytes(name, stored_name(DTypeOf<T>::value), shape,
              {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
  }
  /// @param padding  spaces after the header, which move the data to other alignments
  [[nodiscard]] std::string bytes(int padding = 0) const;

 private:
  static std::string_view stored_name(DType dtype);

  std::string entries_;
  std::string data_;
};

}  // namespace headrace::test
