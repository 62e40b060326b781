// SPDX-License-Identifier: Apache-2.0
// Selections in cache_slot space at the edges of pages, where slots that are keys lie beside slots that are not.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/compare.h"
#include "support/run_path.h"

namespace headrace {
namespace {

struct Lengths {
  std::int64_t seq_len;
  std::int64_t page_size;
};

/// Pages that are full and that are not, one row short and one row long, and lengths at the edge of a mask word.
constexpr Lengths kLengths[] = {{10, 4}, {8, 4}, {9, 4}, {7, 4}, {5, 1}, {64, 24}, {64, 16}, {128, 60}, {65, 64}};

/// Every row selects every slot of the cache.
void expect_oracle_of_all_slots(const test::CaseSpec& spec, Path path) {
  const test::AttentionCase problem(spec);
  Inputs inputs = problem.inputs();
  const std::int64_t slots = inputs.cache.num_slots();
  std::vector<std::int32_t> index(static_cast<std::size_t>(problem.tokens() * slots));
  for (std::size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % slots);
  }
  inputs.selection.index = View<const std::int32_t>(index.data(), {problem.tokens(), slots});
  inputs.selection.count = {};
  test::OutputBuffer result = problem.output_buffer();
  test::run_plan(test::plan_path(problem, path), problem, inputs, result.outputs());
  const auto queries = problem.queries();
  const auto expected = attention::oracle_rows(problem.attention(), problem.weights(), inputs, queries, 1);
  const auto comparison = test::compare(problem, result, expected, test::tolerance_of(spec.compute));
  EXPECT_FALSE(comparison.failure) << name_of(path) << ": " << *comparison.failure << "\n" << problem.spec();
}

/// Of all slots only the keys of the row's request count: not those of other requests, not the rows after its last key
/// on a page that is not full, which hold NaN here, and those of a page that it names twice once.
TEST(SlotEdge, OnlyKeysOfTheRequestCount) {
  for (const Lengths& lengths : kLengths) {
    for (const Path path : {Path::masked_mha, Path::topk_mqa}) {
      for (const DType compute : {DType::float32, DType::bfloat16}) {
        for (const bool repeat_page : {false, true}) {
          test::CaseSpec spec;
          spec.compute = compute;
          spec.space = SelectionSpace::cache_slot;
          spec.requests = {{2, lengths.seq_len - 2}, {3, 0}, {1, 9}};
          spec.page_size = lengths.page_size;
          spec.repeat_page = repeat_page;
          spec.seed = test::fresh_seed();
          expect_oracle_of_all_slots(spec, path);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
