// SPDX-License-Identifier: Apache-2.0
#include "io/json.h"

#include <unordered_set>
#include <vector>

#include "headrace/error.h"

namespace headrace::io {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxDescription = 64;
constexpr std::size_t kMaxReason = 256;  // the parser's message quotes the text it stopped at, whatever its length

/// Sees every event of a parse and throws for what the parser itself lets pass.
class StructureCheck {
 public:
  explicit StructureCheck(std::string_view name) : name_(name) {}

  void operator()(Json::parse_event_t event, const Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (open_.size() == kMaxDepth) {
          throw Error(name_, "JSON that nests at most " + std::to_string(kMaxDepth) + " deep", "deeper nesting");
        }
        open_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        open_.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!open_.back().insert(value.get<std::string>()).second) {
          throw Error(name_, "each key once in its object", describe(value) + " twice");
        }
        break;
      case Json::parse_event_t::value:
        break;
    }
  }

 private:
  std::string name_;
  std::vector<std::unordered_set<std::string>> open_;  // keys seen in each open object; arrays stay empty
};

}  // namespace

Json parse_json(std::string_view text, std::string_view name) {
  StructureCheck check(name);
  try {
    return Json::parse(text, [&check](int, Json::parse_event_t event, const Json& value) {
      check(event, value);
      return true;
    });
  } catch (const Json::exception& error) {
    throw Error(std::string(name), "JSON", std::string(error.what()).substr(0, kMaxReason));
  }
}

std::string describe(const Json& value) {
  if (value.is_object()) {
    return "an object";
  }
  if (value.is_array()) {
    return "an array of " + std::to_string(value.size());
  }
  std::string text = value.dump();
  if (text.size() <= kMaxDescription) {
    return text;
  }
  return std::string(value.is_string() ? "a string of " : "a number of ") + std::to_string(text.size()) + " characters";
}

}  // namespace headrace::io
