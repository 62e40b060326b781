// SPDX-License-Identifier: Apache-2.0
#include "geometry/config_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "headrace/error.h"

namespace headrace {
namespace {

std::string integer_in(std::int64_t low, std::int64_t high) { return fmt::format("an integer in [{}, {}]", low, high); }

std::string number_in(Range range) { return fmt::format("a number in [{:g}, {:g}]", range.low, range.high); }

// The parser keeps what exceeds 2^63 as unsigned and what exceeds 2^64 as a floating-point number.
std::optional<std::int64_t> as_integer(const io::Json& value, std::int64_t low, std::int64_t high) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>()))) {
    return std::nullopt;
  }
  const auto result = value.get<std::int64_t>();
  return result >= low && result <= high ? std::optional(result) : std::nullopt;
}

}  // namespace

ConfigFields::ConfigFields(const io::Json& object, std::string_view document, std::string path)
    : object_(&object), document_(document), path_(std::move(path)) {
  if (!object.is_object()) {
    throw Error(path_.empty() ? document_ : document_ + ": " + path_, "an object", io::describe(object));
  }
}

const io::Json* ConfigFields::find(std::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::size_t ConfigFields::length(std::string_view key) const {
  const io::Json* value = find(key);
  if (value == nullptr) {
    return 0;
  }
  return value->is_string() ? value->get_ref<const std::string&>().size() : value->is_array() ? value->size() : 0;
}

bool ConfigFields::is_string(std::string_view key) const {
  const io::Json* value = find(key);
  return value != nullptr && value->is_string();
}

void ConfigFields::fail(std::string_view key, std::string expected, std::string actual) const {
  throw Error(fmt::format("{}: {}", document_, path_of(key)), std::move(expected), std::move(actual));
}

void ConfigFields::fail(std::string_view key, std::string expected) const {
  fail(key, std::move(expected), shown(key));
}

bool ConfigFields::is(std::string_view key, const io::Json& value) const {
  const auto found = object_->find(key);
  return found != object_->end() && *found == value;
}

bool ConfigFields::same_values(std::string_view key, std::string_view other) const {
  const auto found = object_->find(other);
  return found != object_->end() && is(key, *found);
}

bool ConfigFields::is_all(std::string_view key, std::string_view value) const {
  const io::Json* field = find(key);
  if (field == nullptr) {
    return false;
  }
  if (field->is_string()) {
    return value.size() == 1 && field->get<std::string>().find_first_not_of(value) == std::string::npos;
  }
  return field->is_array() &&
         std::all_of(field->begin(), field->end(), [&](const io::Json& item) { return item == value; });
}

bool ConfigFields::has_item(std::string_view key, std::string_view item) const {
  const io::Json* value = find(key);
  return value != nullptr && value->is_array() && std::find(value->begin(), value->end(), item) != value->end();
}

std::vector<std::string> ConfigFields::keys() const {
  std::vector<std::string> result;
  for (const auto& item : object_->items()) {
    result.push_back(item.key());
  }
  return result;
}

std::string ConfigFields::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

std::string ConfigFields::shown(std::string_view key) const {
  const auto found = object_->find(key);
  return found == object_->end() ? "nothing" : io::describe(*found);
}

bool ConfigFields::same_at(std::string_view key, const ConfigFields& other) const {
  const auto mine = object_->find(key);
  const auto its = other.object_->find(key);
  return mine != object_->end() && its != other.object_->end() && *mine == *its;
}

std::optional<std::int64_t> ConfigFields::optional_integer(std::string_view key, std::int64_t low,
                                                           std::int64_t high) const {
  return present(key) ? std::optional(integer(key, low, high)) : std::nullopt;
}

std::int64_t ConfigFields::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  const io::Json* value = find(key);
  const std::optional<std::int64_t> result = value != nullptr ? as_integer(*value, low, high) : std::nullopt;
  if (!result) {
    fail(key, integer_in(low, high));
  }
  return *result;
}

std::optional<double> ConfigFields::optional_number(std::string_view key, Range range) const {
  return present(key) ? std::optional(number(key, range)) : std::nullopt;
}

double ConfigFields::number(std::string_view key, Range range) const {
  const io::Json* value = find(key);
  const double result = value != nullptr && value->is_number() ? value->get<double>() : range.low;
  if (value == nullptr || !value->is_number() || !(result >= range.low && result <= range.high)) {
    fail(key, number_in(range));
  }
  return result;
}

std::optional<bool> ConfigFields::optional_boolean(std::string_view key) const {
  if (!present(key)) {
    return std::nullopt;
  }
  const io::Json* value = find(key);
  if (value == nullptr || !value->is_boolean()) {
    fail(key, "true or false");
  }
  return value->get<bool>();
}

std::string ConfigFields::string(std::string_view key) const {
  if (!is_string(key)) {
    fail(key, "a string");
  }
  return find(key)->get<std::string>();
}

ConfigFields ConfigFields::object(std::string_view key) const {
  const io::Json* value = find(key);
  if (value == nullptr || !value->is_object()) {
    fail(key, "an object");
  }
  return ConfigFields(*value, document_, path_of(key));
}

std::optional<ConfigFields> ConfigFields::optional_object(std::string_view key) const {
  return has(key) ? std::optional(object(key)) : std::nullopt;
}

std::vector<std::string> ConfigFields::strings(std::string_view key, std::int64_t size) const {
  const io::Json* value = find(key);
  if (value == nullptr || !value->is_array() || std::cmp_less(value->size(), size)) {
    fail(key, fmt::format("an array of {} strings, one a layer", size));
  }
  std::vector<std::string> result;
  result.reserve(static_cast<std::size_t>(size));
  for (std::size_t i = 0; std::cmp_less(i, size); ++i) {
    const io::Json& item = (*value)[i];
    if (!item.is_string()) {
      fail(fmt::format("{}[{}]", key, i), "a string", io::describe(item));
    }
    result.push_back(item.get<std::string>());
  }
  return result;
}

std::vector<std::int64_t> ConfigFields::layer_numbers(std::string_view key, std::int64_t num_layers) const {
  const io::Json* value = find(key);
  if (value == nullptr || !value->is_array()) {
    fail(key, "an array of layer numbers");
  }
  std::vector<std::int64_t> result;
  result.reserve(value->size());
  for (const io::Json& item : *value) {
    const std::optional<std::int64_t> number = as_integer(item, 0, num_layers - 1);
    if (!number) {
      fail(fmt::format("{}[{}]", key, result.size()), integer_in(0, num_layers - 1), io::describe(item));
    }
    result.push_back(*number);
  }
  return result;
}

}  // namespace headrace
