// SPDX-License-Identifier: Apache-2.0
#include "io/json.h"

#include <algorithm>
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

/// "line 3, column 7", both from 1, of the byte that a parse stopped at, which it counts from 1.
std::string place_of(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(text.size(), byte == 0 ? 0 : byte - 1));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n') + 1;  // 0 where there is no newline
  return "line " + std::to_string(line) + ", column " + std::to_string(before.size() - start + 1);
}

/// The parser's reason without its own names of kinds: "[json.exception.parse_error.101] parse error at line 3, column
/// 7: syntax error while parsing value - unexpected '}'; expected ..." is "unexpected '}'; expected ...".
std::string reason_of(const Json::exception& error) {
  std::string reason = error.what();
  for (const std::string_view end : {"] ", ": syntax error while parsing ", " - "}) {
    if (const std::size_t at = reason.find(end); at != std::string::npos) {
      reason.erase(0, at + end.size());
    }
  }
  return reason.substr(0, kMaxReason);
}

}  // namespace

Json parse_json(std::string_view text, std::string_view name) {
  StructureCheck check(name);
  try {
    return Json::parse(text, [&check](int, Json::parse_event_t event, const Json& value) {
      check(event, value);
      return true;
    });
  } catch (const Json::parse_error& error) {
    throw Error(std::string(name), "JSON", "an error in " + place_of(text, error.byte) + ": " + reason_of(error));
  } catch (const Json::exception& error) {
    throw Error(std::string(name), "JSON", reason_of(error));
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
