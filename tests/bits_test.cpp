// SPDX-License-Identifier: Apache-2.0
// A request's output bits are its own: they do not depend on threads, on what else is in the batch, or on where its
// prompt was cut, as long as cuts lie at multiples of 64. This level: `attend`, on every path, cache format and dtype.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "support/case_gen.h"
#include "support/property.h"
#include "support/random.h"
#include "support/run_path.h"

namespace headrace {
namespace {

using test::AttentionCase;
using test::CaseSpec;
using test::Random;

constexpr std::int64_t kCut = 64;

/// Rows at positions [begin, end) of a request of the case.
struct Piece {
  std::int64_t request = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t rows() const noexcept { return end - begin; }
};

struct StepOptions {
  std::optional<Path> force;
  int threads = 1;
  std::int64_t workspace_limit = std::numeric_limits<std::int64_t>::max();
};

/// What came out for one piece: `path[r]` is row r's; output and LSE bytes follow each other in `bytes[r]`.
struct Rows {
  std::vector<Path> path;
  std::vector<std::vector<std::byte>> bytes;
};

/// A step made of some pieces of a case's requests, in any order, each request at most once: what `attend` would get
/// from an engine that schedules just these. Queries and selections are copied together; the cache stays.
class Step {
 public:
  Step(const AttentionCase& problem, const std::vector<Piece>& pieces) : problem_(problem), pieces_(pieces) {
    const Inputs all = problem.inputs();
    const std::int64_t pages = all.requests.block_table.dim(1);
    for (const Piece& piece : pieces) {
      const std::int64_t context_len = problem.spec().requests[static_cast<std::size_t>(piece.request)].context_len;
      for (std::int64_t position = piece.begin; position < piece.end; ++position) {
        tokens_.push_back(problem.begin_of(piece.request) + position - context_len);
      }
      query_len_.push_back(static_cast<std::int32_t>(piece.rows()));
      seq_len_.push_back(static_cast<std::int32_t>(piece.end));
      query_start_.push_back(static_cast<std::int32_t>(tokens_.size()));
      const std::int32_t* row = all.requests.block_table.at(piece.request);
      block_table_.insert(block_table_.end(), row, row + pages);
    }
    copy_queries(all.q);
    for (const std::int64_t token : tokens_) {
      if (!all.selection.index.empty()) {
        const std::int32_t* row = all.selection.index.at(token);
        index_.insert(index_.end(), row, row + all.selection.index.dim(1));
      }
      if (!all.selection.count.empty()) {
        count_.push_back(all.selection.count(token));
      }
    }
    inputs_.q = q_.view();
    inputs_.cache = all.cache;
    inputs_.requests = {view(query_start_), view(seq_len_),
                        View<const std::int32_t>(block_table_.data(), {std::ssize(pieces), pages})};
    inputs_.selection.space = all.selection.space;
    if (!all.selection.index.empty()) {
      inputs_.selection.index = View<const std::int32_t>(index_.data(), {tokens(), all.selection.index.dim(1)});
    }
    if (!all.selection.count.empty()) {
      inputs_.selection.count = view(count_);
    }
  }

  [[nodiscard]] std::vector<Rows> run(const StepOptions& options) const {
    Hints hints;
    hints.force = options.force;
    Limits limits;
    limits.workspace_bytes = options.workspace_limit;
    limits.device.threads = options.threads;
    const Plan step = plan(problem_.attention(), {query_len_, seq_len_, true}, limits, hints);
    const Geometry& g = problem_.attention().geometry;
    Tensor out(problem_.spec().out, {tokens(), g.num_heads, g.v_head_dim});
    Tensor lse(DType::float32, {tokens(), g.num_heads});
    test::run_plan(step, problem_, inputs_, {out.view(), lse.view_as<float>()});
    std::vector<Rows> result;
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      result.push_back({paths_of(step.requests()[p]), {}});
      for (std::int32_t token = query_start_[p]; token < query_start_[p + 1]; ++token) {
        std::vector<std::byte> bytes = row_of(out, token);
        const std::vector<std::byte> lse_bytes = row_of(lse, token);
        bytes.insert(bytes.end(), lse_bytes.begin(), lse_bytes.end());
        result.back().bytes.push_back(std::move(bytes));
      }
    }
    return result;
  }

 private:
  [[nodiscard]] std::int64_t tokens() const noexcept { return std::ssize(tokens_); }
  static View<const std::int32_t> view(const std::vector<std::int32_t>& values) {
    return View<const std::int32_t>(values.data(), {std::ssize(values)});
  }
  static std::vector<std::byte> row_of(const Tensor& tensor, std::int64_t token) {
    const std::int64_t row_bytes = tensor.size_bytes() / tensor.dim(0);
    return {tensor.data() + token * row_bytes, tensor.data() + (token + 1) * row_bytes};
  }
  static std::vector<Path> paths_of(const RequestPlan& plan) {
    std::vector<Path> paths;
    for (const Segment& segment : plan.segments) {
      paths.insert(paths.end(), static_cast<std::size_t>(segment.end - segment.begin), segment.path);
    }
    return paths;
  }
  void copy_queries(const ConstAnyView& from) {
    q_ = Tensor(from.dtype(), {tokens(), from.dim(1), from.dim(2)});
    const std::int64_t head_bytes = from.dim(2) * size_of(from.dtype());
    std::byte* to = q_.data();
    for (const std::int64_t token : tokens_) {
      for (std::int64_t head = 0; head < from.dim(1); ++head, to += head_bytes) {
        const std::int64_t offset = token * from.stride(0) + head * from.stride(1);
        std::memcpy(to, static_cast<const std::byte*>(from.data()) + offset * size_of(from.dtype()),
                    static_cast<std::size_t>(head_bytes));
      }
    }
  }

  const AttentionCase& problem_;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> tokens_;  ///< the case's number of each query token
  std::vector<std::int32_t> query_len_;
  std::vector<std::int32_t> seq_len_;
  std::vector<std::int32_t> query_start_ = {0};
  std::vector<std::int32_t> block_table_;
  std::vector<std::int32_t> index_;
  std::vector<std::int32_t> count_;
  Tensor q_;
  Inputs inputs_;
};

/// Cases like case_specs(), with one to four requests that are long enough to be cut.
rc::Gen<CaseSpec> long_specs(const test::Demand& demand) {
  return rc::gen::exec([demand] {
    CaseSpec spec = *test::case_specs(demand);
    Random random(spec.seed);
    spec.geometry.num_heads = 1 + random.below(20);
    for (test::RequestShape& request : spec.requests) {
      request.query_len = random.below(180);
      request.context_len = random.below(100);
    }
    std::int64_t longest = 1;
    for (const test::RequestShape& request : spec.requests) {
      longest = std::max(longest, request.seq_len());
    }
    if (demand.covered) {
      spec.rule = random.chance(0.5) ? SelectionRule::none() : SelectionRule::lightning(longest);
    } else if (spec.rule.kind() == SelectionRule::Kind::lightning) {
      spec.rule = SelectionRule::lightning(1 + random.below(longest));
    }
    spec.with_selection = spec.rule.kind() != SelectionRule::Kind::none;
    return spec;
  });
}

Piece whole(const CaseSpec& spec, std::int64_t request) {
  const test::RequestShape& shape = spec.requests[static_cast<std::size_t>(request)];
  return {request, shape.context_len, shape.seq_len()};
}

std::vector<Piece> whole_requests(const CaseSpec& spec) {
  std::vector<Piece> pieces;
  for (std::int64_t request = 0; request < std::ssize(spec.requests); ++request) {
    pieces.push_back(whole(spec, request));
  }
  return pieces;
}

/// A request cut at some of the multiples of 64 within it.
std::vector<Piece> cut(const Piece& piece, Random& random) {
  std::vector<Piece> pieces;
  std::int64_t begin = piece.begin;
  for (std::int64_t at = (begin / kCut + 1) * kCut; at < piece.end; at += kCut) {
    if (random.chance(0.7)) {
      pieces.push_back({piece.request, begin, at});
      begin = at;
    }
  }
  pieces.push_back({piece.request, begin, piece.end});
  return pieces;
}

template <class T>
void shuffle(std::vector<T>& values, Random& random) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
}

/// How many rows a test has seen, and how many of them it could compare.
struct Tally {
  std::int64_t seen = 0;
  std::int64_t compared = 0;
};

/// Compares the rows of a piece with the rows of the request it was cut from. A row is compared where the rows around
/// it, up to the multiples of 64, take the same paths in both.
void expect_same_bits(const Rows& part, const Piece& piece, const Rows& all, const Piece& request,
                      const std::string& what, Tally& tally) {
  const auto same_paths = [&](std::int64_t position) {
    const std::int64_t first = std::max(piece.begin, position / kCut * kCut);
    const std::int64_t last = std::min(piece.end, (position / kCut + 1) * kCut);
    return std::equal(part.path.begin() + first - piece.begin, part.path.begin() + last - piece.begin,
                      all.path.begin() + first - request.begin);
  };
  for (std::int64_t position = piece.begin; position < piece.end; ++position) {
    ++tally.seen;
    if (!same_paths(position)) {
      continue;
    }
    ++tally.compared;
    if (part.bytes[static_cast<std::size_t>(position - piece.begin)] !=
        all.bytes[static_cast<std::size_t>(position - request.begin)]) {
      RC_FAIL(what + ": the bits of the row at position " + std::to_string(position) + " of request " +
              std::to_string(request.request) + " differ");
    }
  }
}

/// All requests in one step, on one thread, is what the others are compared with.
class OneStep {
 public:
  OneStep(const AttentionCase& problem, const StepOptions& options, Tally& tally)
      : requests_(whole_requests(problem.spec())), rows_(Step(problem, requests_).run(options)), tally_(tally) {}

  void compare(const std::vector<Piece>& pieces, const std::vector<Rows>& rows, const std::string& what) const {
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      const auto request = static_cast<std::size_t>(pieces[p].request);
      expect_same_bits(rows[p], pieces[p], rows_[request], requests_[request], what, tally_);
    }
  }

 private:
  std::vector<Piece> requests_;
  std::vector<Rows> rows_;
  Tally& tally_;
};

/// One of the paths forced, or the router's choice.
class Bits : public testing::TestWithParam<std::optional<Path>> {
 protected:
  static test::Demand demand(bool by_position) {
    return {.covered = GetParam() == Path::dense_mha, .by_position = by_position, .least_requests = 1};
  }
  static StepOptions options(int threads = 1) { return {.force = GetParam(), .threads = threads}; }
  static int some_threads(Random& random) { return 1 + static_cast<int>(random.below(3)); }

  /// Tries `property(problem, expected, random)` with cases of the path under test.
  /// @param same_plan  the router decides about every request as it did for what is expected
  template <class Property>
  static void check(bool by_position, bool same_plan, const Property& property) {
    Tally tally;
    const int cases = std::max(1, test::property_cases() / 40);
    test::check_property(cases, [&] {
      const AttentionCase problem(*long_specs(demand(by_position)));
      const OneStep expected(problem, options(), tally);
      Random random(problem.spec().seed + 1);
      property(problem, expected, random);
    });
    if (GetParam() || same_plan) {
      EXPECT_EQ(tally.compared, tally.seen) << "rows took another path";
    }
    if (cases >= 20) {  // the router may decide about all of a few cases in another way
      EXPECT_GT(tally.compared, 0);
    }
  }
};

TEST_P(Bits, OfARequestAreTheSameInAnyBatch) {
  check(/*by_position=*/false, /*same_plan=*/true,
        [](const AttentionCase& problem, const OneStep& expected, Random& random) {
          std::vector<Piece> others = whole_requests(problem.spec());
          for (const Piece& piece : others) {
            expected.compare({piece}, Step(problem, {piece}).run(options()), "alone");
          }
          shuffle(others, random);
          others.resize(static_cast<std::size_t>(1 + random.below(std::ssize(others))));
          expected.compare(others, Step(problem, others).run(options()), "among others");
        });
}

TEST_P(Bits, DoNotDependOnThreads) {
  check(/*by_position=*/false, /*same_plan=*/false,
        [](const AttentionCase& problem, const OneStep& expected, Random& /*random*/) {
          const std::vector<Piece> pieces = whole_requests(problem.spec());
          for (const int threads : {2, 3, 5}) {
            expected.compare(pieces, Step(problem, pieces).run(options(threads)), std::to_string(threads) + " threads");
          }
        });
}

/// Steps each of which takes the next piece of some of the requests.
TEST_P(Bits, DoNotDependOnCutsAtMultiplesOf64) {
  check(/*by_position=*/true, /*same_plan=*/false,
        [](const AttentionCase& problem, const OneStep& expected, Random& random) {
          std::vector<std::vector<Piece>> waiting;
          for (const Piece& request : whole_requests(problem.spec())) {
            waiting.push_back(cut(request, random));
            std::ranges::reverse(waiting.back());
          }
          const auto any_left = [&] { return std::ranges::any_of(waiting, [](const auto& w) { return !w.empty(); }); };
          while (any_left()) {
            std::vector<Piece> pieces;
            for (auto& of_request : waiting) {
              if (!of_request.empty() && random.chance(0.7)) {
                pieces.push_back(of_request.back());
                of_request.pop_back();
              }
            }
            shuffle(pieces, random);
            expected.compare(pieces, Step(problem, pieces).run(options(some_threads(random))), "in pieces");
          }
        });
}

TEST_P(Bits, DoNotDependOnTheWorkspace) {
  check(/*by_position=*/false, /*same_plan=*/false,
        [](const AttentionCase& problem, const OneStep& expected, Random& random) {
          const std::vector<Piece> pieces = whole_requests(problem.spec());
          StepOptions cramped = options(some_threads(random));
          const std::int64_t least = test::least_workspace(problem, GetParam().value_or(Path::topk_mqa));
          cramped.workspace_limit = least * cramped.threads + random.below(least + 1);
          expected.compare(pieces, Step(problem, pieces).run(cramped), "in a small workspace");
        });
}

std::string name_of_parameter(const testing::TestParamInfo<std::optional<Path>>& info) {
  return info.param ? std::string(name_of(*info.param)) : "routed";
}

INSTANTIATE_TEST_SUITE_P(Paths, Bits, testing::Values(std::nullopt, Path::dense_mha, Path::masked_mha, Path::topk_mqa),
                         name_of_parameter);

}  // namespace
}  // namespace headrace
