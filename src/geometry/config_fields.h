// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace headrace {

/// A closed range of numbers.
struct Range {
  double low = 0.0;
  double high = 0.0;
};

/// One object of a configuration, read field by field with every value checked. Errors name the file and the field's
/// path: "config.json: text_config.kv_lora_rank". An optional field that is null counts as absent.
class ConfigFields {
 public:
  /// @param path  where the object stands in its document, "" for the document itself; `object` must outlive this
  /// @throws Error unless it is an object
  ConfigFields(const io::Json& object, std::string_view document, std::string path);

  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  [[nodiscard]] std::optional<std::int64_t> optional_integer(std::string_view key, std::int64_t low,
                                                             std::int64_t high) const;
  [[nodiscard]] double number(std::string_view key, Range range) const;
  [[nodiscard]] std::optional<double> optional_number(std::string_view key, Range range) const;
  [[nodiscard]] std::optional<bool> optional_boolean(std::string_view key) const;
  [[nodiscard]] std::string string(std::string_view key) const;
  [[nodiscard]] ConfigFields object(std::string_view key) const;
  [[nodiscard]] std::optional<ConfigFields> optional_object(std::string_view key) const;
  /// As many strings as `size`.
  [[nodiscard]] std::vector<std::string> strings(std::string_view key, std::int64_t size) const;

  /// Whether the field is there and not null.
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  /// Whether the field is there and null.
  [[nodiscard]] bool is_null(std::string_view key) const;
  /// Whether the field is there and a string.
  [[nodiscard]] bool is_string(std::string_view key) const;

  /// @throws Error always, about a field of this object
  [[noreturn]] void fail(std::string_view key, std::string expected, std::string actual) const;
  /// The same with the field's own value as what came.
  [[noreturn]] void fail(std::string_view key, std::string expected) const;

 private:
  [[nodiscard]] const io::Json* find(std::string_view key) const;

  const io::Json* object_;
  std::string document_;
  std::string path_;
};

}  // namespace headrace
