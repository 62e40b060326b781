// SPDX-License-Identifier: Apache-2.0
#include "verify_readings.h"

#include <algorithm>

#include "headrace/error.h"

namespace headrace::app {

bool ReadingResult::fails() const noexcept {
  return refusal != nullptr || std::any_of(layers.begin(), layers.end(), [](const LayerResult& layer) {
           return !layer.pass() && !layer.cannot_run();
         });
}

std::vector<Reading> readings_to_try(const Options& options, std::optional<Reading> recorded, bool differ) {
  if (options.reading_given) {
    return {options.reading};
  }
  if (recorded) {
    return {*recorded};
  }
  return differ ? std::vector{Reading::engines, Reading::transformers} : std::vector{Reading::engines};
}

std::vector<ReadingResult> try_readings(const std::vector<Reading>& readings,
                                        const std::function<std::vector<LayerResult>(Reading)>& work) {
  std::vector<ReadingResult> results;
  for (const Reading reading : readings) {
    ReadingResult& result = results.emplace_back();
    result.reading = reading;
    try {
      result.layers = work(reading);
    } catch (const Error& error) {
      result.refusal = std::current_exception();
      result.refusal_text = error.what();
    }
  }
  const auto refused = std::find_if(results.begin(), results.end(),
                                    [](const ReadingResult& result) { return result.refusal != nullptr; });
  if (refused != results.end() && readings_that_pass(results) == 0) {
    std::rethrow_exception(refused->refusal);
  }
  return results;
}

std::int64_t readings_that_pass(const std::vector<ReadingResult>& results) {
  return std::count_if(results.begin(), results.end(), [](const ReadingResult& result) { return result.pass(); });
}

const ReadingResult& reading_to_report(const std::vector<ReadingResult>& results) {
  auto found = std::find_if(results.begin(), results.end(), [](const ReadingResult& result) { return result.pass(); });
  if (found == results.end()) {
    found = std::find_if(results.begin(), results.end(), [](const ReadingResult& result) { return !result.fails(); });
  }
  return found == results.end() ? results.front() : *found;
}

}  // namespace headrace::app
