// SPDX-License-Identifier: Apache-2.0
// What a user types after --batch and --selection, a line each: alone, and as part of a whole command line.
#include <optional>
#include <string>
#include <vector>

#include "batch_spec.h"
#include "headrace/tensor.h"
#include "options.h"
#include "selection/generators.h"
#include "target.h"

namespace headrace::fuzz {
namespace {

using app::RequestSpec;

std::string spec_of(const std::vector<RequestSpec>& batch) {
  std::string text;
  for (const RequestSpec& request : batch) {
    text += text.empty() ? "" : ",";
    text += request.to_string();
  }
  return text;
}

void check_batch(const std::vector<RequestSpec>& batch) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  require(!batch.empty() && static_cast<std::int64_t>(batch.size()) <= app::kMaxRequests, "a number of requests");
  for (const RequestSpec& request : batch) {
    require(request.query_len >= 0 && request.context_len >= 0 && request.seq_len() <= kMost, "lengths of a request");
  }
  require(app::query_tokens(batch) <= kMost, "2^31 new tokens or more");
  constexpr std::size_t kFew = 64;  // writing out a long batch would slow the rest down
  if (batch.size() <= kFew) {
    require(app::parse_batch_spec(spec_of(batch)) == batch, "a batch that reads back as another");
  }
}

/// A few rows of the generator, which the contract of Selection then binds.
void check_generator(selection::Generator generator) {
  constexpr std::int64_t kRows = 5;
  constexpr std::int64_t kContext = 11;
  generator.topk = 8;
  const bool fits = generator.kind != selection::Generator::Kind::pooled || generator.pool <= generator.topk;
  const std::int64_t width = fits ? generator.width() : generator.topk;
  Tensor index(DType::int32, {kRows, width});
  Tensor count(DType::int32, {kRows});
  const View<std::int32_t> entries = index.view_as<std::int32_t>();
  const View<std::int32_t> counts = count.view_as<std::int32_t>();
  require(completes([&] { generator.fill(0, kContext, entries, counts); }) == fits, "a generator that fills no rows");
  for (std::int64_t row = 0; fits && row < kRows; ++row) {
    require(counts(row) >= 1 && counts(row) <= width, "a generated count");
    for (std::int64_t i = 0; i < counts(row); ++i) {
      require(entries(row, i) > (i == 0 ? -1 : entries(row, i - 1)) && entries(row, i) <= kContext + row,
              "a generated row that does not ascend, or looks ahead");
    }
  }
}

/// The command line finds in the two strings what was found in them alone, or takes them for options.
void check_command_line(const std::string& spec, const std::string& source,
                        const std::optional<std::vector<RequestSpec>>& batch) {
  const char* const arguments[] = {"headrace", "prefill",    "--model",     "glm-5",
                                   "--batch",  spec.c_str(), "--selection", source.c_str()};
  std::optional<app::Options> options;
  completes([&] { options = app::parse_command_line(8, arguments); });
  if (options && options->command == app::Command::prefill) {
    require(batch && options->batch == *batch, "a batch that the command line reads as another");
    require(options->selection.text == source, "a selection that the command line reads as another");
  }
}

void check(const std::string& spec, const std::string& source) {
  std::optional<std::vector<RequestSpec>> batch;
  if (completes([&] { batch = app::parse_batch_spec(spec); })) {
    check_batch(*batch);
  }
  std::optional<selection::Generator> generator;
  if (completes([&] { generator = selection::parse_generator(source); })) {
    check_generator(*generator);
  }
  // A whole command line takes milliseconds: only what goes through it, or could be an option.
  const bool is_source = generator || source == "indexer" || source == "recorded";
  if ((batch && is_source) || spec.starts_with('-') || source.starts_with('-')) {
    check_command_line(spec, source, batch);
  }
}

}  // namespace
}  // namespace headrace::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(headrace::fuzz::text_of(data, size));
  text = text.substr(0, text.find('\0'));  // arguments of a program cannot hold it
  const std::size_t line = text.find('\n');
  headrace::fuzz::check(text.substr(0, line), line == std::string::npos ? "" : text.substr(line + 1));
  return 0;
}
