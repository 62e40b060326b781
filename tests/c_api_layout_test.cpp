// SPDX-License-Identifier: Apache-2.0
//
// What the first header of the C interface declared, today's declares too: the same numbers, functions of the same
// types, and structures that begin the same. tests/c_api/layout.cmake makes the list from the header that was kept.
#include <cxxabi.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

namespace first {
#include "first_header.inc"
}
#undef HR_API
#include "headrace/c_api.h"

namespace {

struct Field {
  std::string name;
  std::size_t offset;
  std::size_t size;
  std::size_t alignment;
  std::string type;
};

struct Struct {
  std::string name;
  std::size_t size;
  std::vector<Field> fields;
};

/// A type's name as it would be outside of the namespace.
std::string name_of(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                         &std::free);
  std::string result = status == 0 ? text.get() : type.name();
  const std::string space = "first::";
  for (std::size_t at = result.find(space); at != std::string::npos; at = result.find(space)) {
    result.erase(at, space.size());
  }
  return result;
}

template <class T>
Field field(const char* name, std::size_t offset) {
  return {name, offset, sizeof(T), alignof(T), name_of(typeid(T))};  // NOLINT(bugprone-sizeof-expression): of a pointer
}

#define CONSTANT(name)
#define FUNCTION(name)

std::vector<Struct> structs_of_first() {
  std::vector<Struct> structs;
  std::vector<Field> fields;
#define FIELD(type, member) \
  fields.push_back(field<decltype(first::type::member)>(#member, offsetof(first::type, member)));
#define SIZE(type)                                         \
  structs.push_back({#type, sizeof(first::type), fields}); \
  fields.clear();
#include "declared.inc"
#undef FIELD
#undef SIZE
  return structs;
}

std::vector<Struct> structs_of_today() {
  std::vector<Struct> structs;
  std::vector<Field> fields;
#define FIELD(type, member) fields.push_back(field<decltype(::type::member)>(#member, offsetof(::type, member)));
#define SIZE(type)                                    \
  structs.push_back({#type, sizeof(::type), fields}); \
  fields.clear();
#include "declared.inc"
#undef FIELD
#undef SIZE
  return structs;
}
#undef CONSTANT
#undef FUNCTION

/// Whether it lies in others or in arrays without a size, so that it can never grow.
bool is_part(const Struct& of) { return of.fields.front().name != "size" && of.name != "HrRequestPlan"; }

TEST(CApiLayout, StructuresBeginAsInTheFirstHeader) {
  const std::vector<Struct> first = structs_of_first();
  const std::vector<Struct> today = structs_of_today();
  ASSERT_EQ(first.size(), today.size());
  for (std::size_t s = 0; s < first.size(); ++s) {
    SCOPED_TRACE(first[s].name);
    EXPECT_GE(today[s].size, first[s].size);
    if (is_part(first[s])) {
      EXPECT_EQ(today[s].size, first[s].size);
    }
    ASSERT_EQ(first[s].fields.size(), today[s].fields.size());
    for (std::size_t f = 0; f < first[s].fields.size(); ++f) {
      SCOPED_TRACE(first[s].fields[f].name);
      EXPECT_EQ(today[s].fields[f].offset, first[s].fields[f].offset);
      EXPECT_EQ(today[s].fields[f].size, first[s].fields[f].size);
      EXPECT_EQ(today[s].fields[f].type, first[s].fields[f].type);
    }
  }
}

// The list misses no field, and no structure that may grow ends in padding: a new field would begin there, and a
// program of the first header would bring anything in it.
TEST(CApiLayout, FieldsFillTheStructures) {
  const std::vector<Struct> first = structs_of_first();
  EXPECT_EQ(first.size(), 16U);
  for (const Struct& of : first) {
    SCOPED_TRACE(of.name);
    std::size_t end = 0;
    for (const Field& field : of.fields) {
      SCOPED_TRACE(field.name);
      EXPECT_EQ(field.offset, (end + field.alignment - 1) / field.alignment * field.alignment);
      end = field.offset + field.size;
    }
    EXPECT_EQ(of.size, is_part(of) ? (end + 7) / 8 * 8 : end);
  }
}

TEST(CApiLayout, NumbersAndFunctionsAreThoseOfTheFirstHeader) {
  int constants = 0;
  int functions = 0;
#define SIZE(type)
#define FIELD(type, member)
#define CONSTANT(name)                                                         \
  EXPECT_EQ(static_cast<int>(::name), static_cast<int>(first::name)) << #name; \
  ++constants;
#define FUNCTION(name)                                                                           \
  EXPECT_EQ(name_of(typeid(decltype(::name))), name_of(typeid(decltype(first::name)))) << #name; \
  ++functions;
#include "declared.inc"
  EXPECT_EQ(constants, 26);
  EXPECT_EQ(functions, 38);
}

}  // namespace
