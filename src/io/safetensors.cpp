// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "headrace/error.h"
#include "io/json.h"

namespace headrace::io {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and read as they are");

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr std::size_t kLengthBytes = 8;
constexpr const char* kKind = "a safetensors file";
constexpr std::string_view kLfsPointer = "version https://git-lfs";

struct StoredType {
  std::string_view name;
  std::int64_t bits;
  std::optional<DType> dtype;  // absent: a file may hold such tensors, but nobody here reads them
};

constexpr std::array kTypes = {
    StoredType{"F32", 32, DType::float32},        StoredType{"BF16", 16, DType::bfloat16},
    StoredType{"F16", 16, DType::float16},        StoredType{"F8_E4M3", 8, DType::float8_e4m3},
    StoredType{"F8_E8M0", 8, DType::float8_e8m0}, StoredType{"I32", 32, DType::int32},
    StoredType{"I64", 64, DType::int64},          StoredType{"U8", 8, DType::uint8},
    StoredType{"BOOL", 8, std::nullopt},          StoredType{"I8", 8, std::nullopt},
    StoredType{"F8_E5M2", 8, std::nullopt},       StoredType{"F8_E4M3FNUZ", 8, std::nullopt},
    StoredType{"F8_E5M2FNUZ", 8, std::nullopt},   StoredType{"F4", 4, std::nullopt},
    StoredType{"F6_E2M3", 6, std::nullopt},       StoredType{"F6_E3M2", 6, std::nullopt},
    StoredType{"I16", 16, std::nullopt},          StoredType{"U16", 16, std::nullopt},
    StoredType{"U32", 32, std::nullopt},          StoredType{"U64", 64, std::nullopt},
    StoredType{"F64", 64, std::nullopt},          StoredType{"C64", 64, std::nullopt},
};

const StoredType* find_type(std::string_view name) {
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const StoredType& t) { return t.name == name; });
  return type == kTypes.end() ? nullptr : type;
}

// The fields of one tensor's header entry, each checked. `where` names file and tensor.
class EntryReader {
 public:
  EntryReader(const Json& entry, std::string where) : entry_(entry), where_(std::move(where)) {
    if (!entry.is_object()) {
      throw Error(where_, "an object with dtype, shape and data_offsets", describe(entry));
    }
  }

  [[nodiscard]] const StoredType& type() const {
    const Json& value = field("dtype");
    const StoredType* type = value.is_string() ? find_type(value.get_ref<const std::string&>()) : nullptr;
    if (type == nullptr) {
      throw Error(where_ + ".dtype", "a dtype of the safetensors format", describe(value));
    }
    return *type;
  }

  [[nodiscard]] std::vector<std::int64_t> sizes(const char* key) const {
    const Json& value = field(key);
    if (!value.is_array()) {
      throw Error(where_ + "." + key, "an array", describe(value));
    }
    std::vector<std::int64_t> result;
    result.reserve(value.size());
    for (const Json& item : value) {
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
        throw Error(where_ + "." + key, "integers in [0, 2^63)", describe(item));
      }
      result.push_back(item.get<std::int64_t>());
    }
    return result;
  }

  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  [[nodiscard]] const Json& field(const char* key) const {
    const auto found = entry_.find(key);
    if (found == entry_.end()) {
      throw Error(where_ + "." + key, "a value", "nothing");
    }
    return *found;
  }

  const Json& entry_;
  std::string where_;
};

std::int64_t byte_size(const EntryReader& reader, const StoredType& type, std::span<const std::int64_t> shape) {
  std::int64_t bits = type.bits;
  for (const std::int64_t n : shape) {
    if (__builtin_mul_overflow(bits, n, &bits)) {
      throw Error(reader.where() + ".shape", "a size that can be addressed", shape_to_string(shape));
    }
  }
  if (bits % 8 != 0) {
    throw Error(reader.where() + ".shape", "whole bytes", fmt::format("{} bits", bits));
  }
  return bits / 8;
}

std::map<std::string, std::string, std::less<>> read_metadata(const Json& metadata, const std::string& where) {
  if (!metadata.is_object()) {
    throw Error(where, "an object of strings", describe(metadata));
  }
  std::map<std::string, std::string, std::less<>> texts;
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      throw Error(where + "." + key, "a string", describe(value));
    }
    texts.emplace(key, value.get<std::string>());
  }
  return texts;
}

}  // namespace

std::string shape_to_string(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

void expect_shape(const StoredTensor& tensor, const std::vector<std::int64_t>& expected) {
  if (tensor.shape != expected) {
    throw Error(tensor.name, "shape " + shape_to_string(expected), shape_to_string(tensor.shape));
  }
}

Safetensors::Safetensors(const std::filesystem::path& path) : file_(std::in_place, path), path_(path) {
  read_header(file_->bytes());
  check_layout(static_cast<std::int64_t>(data_.size()));
}

Safetensors::Safetensors(std::span<const std::byte> bytes, std::filesystem::path name) : path_(std::move(name)) {
  read_header(bytes);
  check_layout(static_cast<std::int64_t>(data_.size()));
}

void Safetensors::read_header(std::span<const std::byte> bytes) {
  const std::string file = path().string();
  if (bytes.size() < kLengthBytes) {
    throw Error(file, kKind, fmt::format("{} bytes, which is less than the length of a header takes", bytes.size()));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const std::uint64_t room = bytes.size() - kLengthBytes;
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (all.starts_with(kLfsPointer)) {
    throw Error(file, kKind, "a pointer of git-lfs, which stands for a file that is still to be downloaded");
  }
  // A header's first byte tells a file that was cut within it from one of another kind.
  if (length > kMaxHeader || length < 1 || (room > 0 && all[kLengthBytes] != '{')) {
    throw Error(file, kKind, "another kind of file: it does not begin with the length of a header and the header");
  }
  if (length > room) {
    throw Error(file, fmt::format("a header of {} bytes, as the file says", length),
                fmt::format("{} bytes: the file is cut short", room));
  }
  const std::string_view text = all.substr(kLengthBytes, length);
  data_ = bytes.subspan(kLengthBytes + length);

  const Json header = parse_json(text, file + ": header");
  for (const auto& [name, value] : header.items()) {
    const std::string where = file + ": " + name;
    if (name == "__metadata__") {
      metadata_ = read_metadata(value, where);
      continue;
    }
    const EntryReader reader(value, where);
    const StoredType& type = reader.type();
    Entry entry{std::string(type.name), reader.sizes("shape"), 0, 0};
    const std::vector<std::int64_t> offsets = reader.sizes("data_offsets");
    // Whether the file has these bytes is known of all tensors together: check_layout says so of the whole file.
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      throw Error(where + ".data_offsets", "begin <= end", shape_to_string(offsets));
    }
    std::tie(entry.begin, entry.end) = std::pair(offsets[0], offsets[1]);
    const std::int64_t size = byte_size(reader, type, entry.shape);
    if (entry.end - entry.begin != size) {
      throw Error(where + ".data_offsets",
                  fmt::format("{} bytes for {} {}", size, type.name, shape_to_string(entry.shape)),
                  fmt::format("{} bytes", entry.end - entry.begin));
    }
    entries_.emplace(name, std::move(entry));
  }
}

// The format wants every byte of the data to belong to exactly one tensor: no hole, no overlap.
void Safetensors::check_layout(std::int64_t data_size) const {
  std::vector<const decltype(entries_)::value_type*> order;
  order.reserve(entries_.size());
  for (const auto& item : entries_) {
    order.push_back(&item);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::tie(a->second.begin, a->second.end) < std::tie(b->second.begin, b->second.end);
  });
  std::int64_t end = 0;
  for (const auto* item : order) {
    if (item->second.begin != end) {
      throw Error(path().string() + ": " + item->first + ".data_offsets",
                  fmt::format("to begin at {}, where the tensor before ends", end),
                  fmt::format("{} ({})", item->second.begin, item->second.begin < end ? "an overlap" : "a hole"));
    }
    end = item->second.end;
  }
  if (end != data_size) {
    throw Error(path().string(), fmt::format("{} bytes of tensor data, as its header says", end),
                fmt::format("{} bytes{}", data_size, data_size < end ? ": the file is cut short" : ""));
  }
}

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> result;
  result.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) {
    result.push_back(name);
  }
  return result;
}

std::optional<std::string> Safetensors::metadata(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? std::nullopt : std::optional(found->second);
}

StoredTensor Safetensors::tensor(std::string_view name, std::string_view types) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw Error(std::string(name), "a tensor of " + path().string(), "nothing");
  }
  const Entry& entry = found->second;
  const std::optional<DType> dtype = find_type(entry.dtype)->dtype;
  if (!dtype) {
    throw Error(std::string(name), std::string(types), entry.dtype);
  }
  return {std::string(name), *dtype, entry.shape,
          data_.subspan(static_cast<std::size_t>(entry.begin), static_cast<std::size_t>(entry.end - entry.begin))};
}

}  // namespace headrace::io
