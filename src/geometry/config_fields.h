// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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
/// path: "config.json: text_config.kv_lora_rank". Null is a wrong value, except for the readers that say otherwise.
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
  /// Nothing where it is absent or null.
  [[nodiscard]] std::optional<ConfigFields> optional_object(std::string_view key) const;
  /// The first `size` strings of an array, which may be longer.
  [[nodiscard]] std::vector<std::string> strings(std::string_view key, std::int64_t size) const;
  /// Numbers of layers of a model with `num_layers`.
  [[nodiscard]] std::vector<std::int64_t> layer_numbers(std::string_view key, std::int64_t num_layers) const;

  /// Whether the field is there, be it null.
  [[nodiscard]] bool present(std::string_view key) const { return object_->contains(key); }
  /// Whether the field is there and not null.
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  /// Whether the field is there and null.
  [[nodiscard]] bool is_null(std::string_view key) const { return present(key) && !has(key); }
  /// Of an array or a string; 0 for anything else.
  [[nodiscard]] std::size_t length(std::string_view key) const;
  /// Whether the field is there and a string.
  [[nodiscard]] bool is_string(std::string_view key) const;
  /// Whether the field is there and has this value.
  [[nodiscard]] bool is(std::string_view key, const io::Json& value) const;
  /// Whether two fields are there and have the same value.
  [[nodiscard]] bool same_values(std::string_view key, std::string_view other) const;
  /// Whether the field is there and an array of nothing but this value, or a string of nothing but this letter.
  [[nodiscard]] bool is_all(std::string_view key, std::string_view value) const;
  /// Whether the field is there and an array that has this item.
  [[nodiscard]] bool has_item(std::string_view key, std::string_view item) const;

  [[nodiscard]] std::vector<std::string> keys() const;
  [[nodiscard]] bool empty() const { return object_->empty(); }
  /// Where a field of this object stands in the document: "text_config.kv_lora_rank".
  [[nodiscard]] std::string path_of(std::string_view key) const;
  /// A field's value as errors show it; "nothing" where it is absent.
  [[nodiscard]] std::string shown(std::string_view key) const;
  /// Whether another object has the same fields with the same values.
  [[nodiscard]] bool same_as(const ConfigFields& other) const { return *object_ == *other.object_; }
  /// Whether another object has the same value there.
  [[nodiscard]] bool same_at(std::string_view key, const ConfigFields& other) const;

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
