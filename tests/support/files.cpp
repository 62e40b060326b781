// SPDX-License-Identifier: Apache-2.0
#include "support/files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

namespace headrace::test {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "headrace-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw std::runtime_error("no temporary folder: " + name);
  }
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream.flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    throw std::runtime_error("cannot read " + path.string());
  }
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::string safetensors_bytes(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string result(sizeof(length), '\0');
  std::memcpy(result.data(), &length, sizeof(length));
  return result.append(header).append(data);
}

void SafetensorsWriter::add_bytes(const std::string& name, std::string_view dtype,
                                  const std::vector<std::int64_t>& shape, std::string_view bytes) {
  entries_ += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", entries_.empty() ? "" : ",",
                          name, dtype, fmt::join(shape, ","), data_.size(), data_.size() + bytes.size());
  data_ += bytes;
}

std::string SafetensorsWriter::bytes(int padding) const {
  return safetensors_bytes("{" + entries_ + "}" + std::string(static_cast<std::size_t>(padding), ' '), data_);
}

std::string_view SafetensorsWriter::stored_name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "F32";
    case DType::bfloat16:
      return "BF16";
    case DType::float16:
      return "F16";
    case DType::float8_e4m3:
      return "F8_E4M3";
    case DType::float8_e8m0:
      return "F8_E8M0";
    case DType::int32:
      return "I32";
    case DType::int64:
      return "I64";
    case DType::uint8:
      return "U8";
  }
  return "";
}

}  // namespace headrace::test
