// SPDX-License-Identifier: Apache-2.0
#include "capi/names.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "headrace/c_api.h"
#include "headrace/error.h"

namespace headrace::capi {
namespace {

template <class Value>
struct Named {
  std::int32_t number = 0;
  Value value{};
  std::string_view name;
};

constexpr std::array kDTypes = {
    Named<DType>{HR_FLOAT32, DType::float32, "HR_FLOAT32"},
    Named<DType>{HR_BFLOAT16, DType::bfloat16, "HR_BFLOAT16"},
    Named<DType>{HR_FLOAT16, DType::float16, "HR_FLOAT16"},
    Named<DType>{HR_FLOAT8_E4M3, DType::float8_e4m3, "HR_FLOAT8_E4M3"},
    Named<DType>{HR_FLOAT8_E8M0, DType::float8_e8m0, "HR_FLOAT8_E8M0"},
    Named<DType>{HR_INT32, DType::int32, "HR_INT32"},
    Named<DType>{HR_INT64, DType::int64, "HR_INT64"},
    Named<DType>{HR_UINT8, DType::uint8, "HR_UINT8"},
};
constexpr std::array kFormats = {
    Named<CacheFormat>{HR_CACHE_FLOAT32, CacheFormat::float32, "HR_CACHE_FLOAT32"},
    Named<CacheFormat>{HR_CACHE_BFLOAT16, CacheFormat::bfloat16, "HR_CACHE_BFLOAT16"},
    Named<CacheFormat>{HR_CACHE_FP8, CacheFormat::fp8, "HR_CACHE_FP8"},
    Named<CacheFormat>{HR_CACHE_FP8_DS_MLA, CacheFormat::fp8_ds_mla, "HR_CACHE_FP8_DS_MLA"},
};
constexpr std::array kRules = {
    Named<SelectionRule::Kind>{HR_RULE_NONE, SelectionRule::Kind::none, "HR_RULE_NONE"},
    Named<SelectionRule::Kind>{HR_RULE_LIGHTNING, SelectionRule::Kind::lightning, "HR_RULE_LIGHTNING"},
    Named<SelectionRule::Kind>{HR_RULE_KPOOL, SelectionRule::Kind::kpool, "HR_RULE_KPOOL"},
    Named<SelectionRule::Kind>{HR_RULE_OPAQUE, SelectionRule::Kind::opaque, "HR_RULE_OPAQUE"},
};
constexpr std::array kSpaces = {
    Named<SelectionSpace>{HR_REQUEST_POSITION, SelectionSpace::request_position, "HR_REQUEST_POSITION"},
    Named<SelectionSpace>{HR_CACHE_SLOT, SelectionSpace::cache_slot, "HR_CACHE_SLOT"},
};
constexpr std::array kPathNumbers = {
    Named<Path>{HR_DENSE_MHA, Path::dense_mha, "HR_DENSE_MHA"},
    Named<Path>{HR_MASKED_MHA, Path::masked_mha, "HR_MASKED_MHA"},
    Named<Path>{HR_TOPK_MQA, Path::topk_mqa, "HR_TOPK_MQA"},
};

template <class Table>
auto find(const std::string& argument, const Table& table, std::int32_t number) {
  for (const auto& entry : table) {
    if (entry.number == number) {
      return entry.value;
    }
  }
  std::string names;
  for (const auto& entry : table) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", entry.name, entry.number);
  }
  throw Error(argument, "one of " + names, std::to_string(number));
}

template <class Table, class Value>
std::int32_t number_in(const Table& table, Value value) noexcept {
  for (const auto& entry : table) {
    if (entry.value == value) {
      return entry.number;
    }
  }
  return 0;
}

}  // namespace

DType dtype_of(const std::string& argument, std::int32_t number) { return find(argument, kDTypes, number); }
CacheFormat format_of(const std::string& argument, std::int32_t number) { return find(argument, kFormats, number); }
SelectionRule::Kind rule_of(const std::string& argument, std::int32_t number) { return find(argument, kRules, number); }
SelectionSpace space_of(const std::string& argument, std::int32_t number) { return find(argument, kSpaces, number); }
Path path_of(const std::string& argument, std::int32_t number) { return find(argument, kPathNumbers, number); }

std::int32_t number_of(Path path) noexcept { return number_in(kPathNumbers, path); }
std::int32_t number_of(DType dtype) noexcept { return number_in(kDTypes, dtype); }

}  // namespace headrace::capi
