// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "cache/requests.h"
#include "device/parallel.h"
#include "headrace/error.h"
#include "headrace/indexer.h"
#include "selection/candidates.h"
#include "selection/index_cache.h"
#include "selection/kpool.h"
#include "selection/lightning.h"
#include "selection/token_range.h"
#include "selection/topk.h"

namespace headrace {
namespace selection {
namespace {

// A block's products, [rows * heads, candidates] in float32, are to stay in a core's second-level cache.
constexpr std::int64_t kHeadRowsAtOnce = 256;
constexpr std::int64_t kCandidatesAtOnce = 256;
constexpr std::int64_t kMinCandidates = 16;
constexpr std::int64_t kMaxRows = 64;

/// A run of rows of one request that one thread handles at once.
struct Task {
  std::int64_t request = 0;
  std::int64_t token = 0;     ///< of the first row
  std::int64_t position = 0;  ///< of the first row
  std::int64_t rows = 0;
};

/// What one thread needs, all of it counted by `bytes`.
class Worker {
 public:
  Worker(const IndexerGeometry& indexer, ScoreBlock block, std::int64_t kept)
      : kept_(kept),
        scorer_(indexer, block),
        entries_(static_cast<std::size_t>((block.rows + 1) * TopK::capacity(kept))),
        chosen_(static_cast<std::size_t>(kept)) {}

  /// @param kept  candidates that a row selects at most
  [[nodiscard]] static std::int64_t bytes(const IndexerGeometry& indexer, ScoreBlock block, std::int64_t kept) {
    const auto entry_bytes = static_cast<std::int64_t>(sizeof(TopK::Entry));
    const auto chosen_bytes = static_cast<std::int64_t>(sizeof(std::int32_t));
    return Scorer::bytes(indexer, block) + (block.rows + 1) * TopK::capacity(kept) * entry_bytes + kept * chosen_bytes;
  }

  [[nodiscard]] Scorer& scorer() noexcept { return scorer_; }
  [[nodiscard]] TopK row(std::int64_t r) noexcept { return TopK(kept_, entries(r), entries(scorer_.block().rows)); }
  [[nodiscard]] std::int32_t* chosen() noexcept { return chosen_.data(); }

 private:
  [[nodiscard]] TopK::Entry* entries(std::int64_t r) noexcept { return entries_.data() + r * TopK::capacity(kept_); }

  std::int64_t kept_;
  Scorer scorer_;
  std::vector<TopK::Entry> entries_;  // of each row, then the scratch they share
  std::vector<std::int32_t> chosen_;
};

/// How the work is cut to fit the workspace.
struct Cut {
  ScoreBlock block;
  int threads = 1;
};

std::int64_t kept_of(const IndexerGeometry& indexer, std::int64_t longest) {
  const Candidates candidates = Candidates::of(indexer);
  return std::max<std::int64_t>(1, std::min(candidates.budget, candidates.among(longest)));
}

Cut fit(const IndexerGeometry& indexer, std::int64_t longest, std::int64_t workspace_bytes, int threads) {
  const std::int64_t kept = kept_of(indexer, longest);
  Cut cut{{std::clamp<std::int64_t>(kHeadRowsAtOnce / indexer.num_heads, 1, kMaxRows), kCandidatesAtOnce},
          device::thread_count(threads)};
  while (Worker::bytes(indexer, cut.block, kept) > workspace_bytes / cut.threads) {
    if (cut.block.candidates > kCandidatesAtOnce / 4) {
      cut.block.candidates /= 2;
    } else if (cut.block.rows > 1) {
      cut.block.rows /= 2;
    } else if (cut.block.candidates > kMinCandidates) {
      cut.block.candidates /= 2;
    } else if (cut.threads > 1) {
      --cut.threads;
    } else {
      throw Error("workspace_bytes", fmt::format("at least {}", select_workspace_minimum(indexer, longest)),
                  std::to_string(workspace_bytes));
    }
  }
  return cut;
}

class Selector {
 public:
  Selector(const IndexerGeometry& indexer, DType compute, const CacheView& cache, const IndexQueries& queries,
           const Requests& requests, View<std::int32_t> index, View<std::int32_t> count) noexcept
      : indexer_(indexer),
        candidates_(Candidates::of(indexer)),
        compute_(compute),
        cache_(cache),
        queries_(queries),
        requests_(requests),
        index_(index),
        count_(count) {}

  void run(const Task& task, Worker& worker) const {
    const std::int64_t sees_most = candidates_.among(task.position + task.rows);
    if (sees_most <= candidates_.budget) {
      take_everything(task, sees_most, worker);
    } else {
      rank(task, sees_most, worker);
    }
  }

 private:
  void take_everything(const Task& task, std::int64_t sees_most, Worker& worker) const {
    std::iota(worker.chosen(), worker.chosen() + sees_most, 0);
    for (std::int64_t r = 0; r < task.rows; ++r) {
      write(task, r, worker.chosen(), candidates_.among(task.position + r + 1));
    }
  }

  void rank(const Task& task, std::int64_t sees_most, Worker& worker) const {
    const IndexKeyReader reader(indexer_, compute_, cache_, requests_, task.request);
    Scorer& scorer = worker.scorer();
    std::vector<TopK> best;
    best.reserve(static_cast<std::size_t>(task.rows));
    for (std::int64_t r = 0; r < task.rows; ++r) {
      best.push_back(worker.row(r));
    }
    scorer.load_rows(queries_, task.token, task.rows);
    for (std::int64_t begin = 0; begin < sees_most; begin += scorer.block().candidates) {
      const std::int64_t end = std::min(sees_most, begin + scorer.block().candidates);
      scorer.load_candidates(reader, begin, end);
      for (std::int64_t r = 0; r < task.rows; ++r) {
        const std::int64_t seen = std::min(end, candidates_.among(task.position + r + 1)) - begin;
        if (seen > 0) {
          best[static_cast<std::size_t>(r)].offer(scorer.scores(r, seen), seen, begin);
        }
      }
    }
    for (std::int64_t r = 0; r < task.rows; ++r) {
      write(task, r, worker.chosen(), best[static_cast<std::size_t>(r)].finish(worker.chosen()));
    }
  }

  void write(const Task& task, std::int64_t r, const std::int32_t* chosen, std::int64_t n) const {
    const std::int64_t token = task.token + r;
    const View<std::int32_t> row(index_.at(token), 1, {index_.dim(1)}, {index_.stride(1)});
    const std::span<const std::int32_t> picked(chosen, static_cast<std::size_t>(n));
    count_(token) = static_cast<std::int32_t>(write_row(candidates_, picked, task.position + r, row));
  }

  const IndexerGeometry& indexer_;
  Candidates candidates_;
  DType compute_;
  const CacheView& cache_;
  const IndexQueries& queries_;
  const Requests& requests_;
  View<std::int32_t> index_;
  View<std::int32_t> count_;
};

void validate_scoring_begin(View<const std::int64_t> scoring_begin, std::size_t requests) {
  if (scoring_begin.empty()) {
    return;
  }
  scoring_begin.expect("scoring_begin", {static_cast<std::int64_t>(requests)});
  for (std::int64_t b = 0; b < scoring_begin.dim(0); ++b) {
    if (scoring_begin(b) < 0) {
      throw Error(fmt::format("scoring_begin[{}]", b), "a position >= 0", std::to_string(scoring_begin(b)));
    }
  }
}

/// Rows [begin, end) of a request are made, those from `scored` on by their scores.
struct RowsToMake {
  std::int64_t begin = 0;
  std::int64_t scored = 0;
  std::int64_t end = 0;
};

/// For each request, in the range.
std::vector<RowsToMake> rows_to_make(const std::vector<cache::Request>& spans, View<const std::int64_t> scoring_begin,
                                     TokenRange range) {
  validate_scoring_begin(scoring_begin, spans.size());
  std::vector<RowsToMake> rows;
  for (std::size_t b = 0; b < spans.size(); ++b) {
    const cache::Request& span = spans[b];
    const std::int64_t begin = std::clamp<std::int64_t>(range.begin - span.first_token, 0, span.query_len);
    const std::int64_t end = std::clamp<std::int64_t>(range.end - span.first_token, 0, span.query_len);
    const std::int64_t from = scoring_begin.empty() ? 0 : scoring_begin(b);
    rows.push_back({begin, std::clamp(from - span.context_len(), begin, end), end});
  }
  return rows;
}

/// The longest sequence that is read; throws Error where its pages are not valid. 0: no row is scored.
std::int64_t validate_scored(const CacheView& cache, const Requests& requests, const std::vector<cache::Request>& spans,
                             const std::vector<RowsToMake>& rows) {
  std::int64_t longest = 0;
  for (std::size_t b = 0; b < spans.size(); ++b) {
    if (rows[b].scored < rows[b].end) {
      cache::validate_pages(requests, static_cast<std::int64_t>(b), 0, spans[b].seq_len, cache);
      longest = std::max(longest, spans[b].seq_len);
    }
  }
  return longest;
}

void clear_rows(const std::vector<cache::Request>& spans, const std::vector<RowsToMake>& rows, View<std::int32_t> index,
                View<std::int32_t> count) {
  for (std::size_t b = 0; b < spans.size(); ++b) {
    for (std::int64_t t = spans[b].first_token + rows[b].begin; t < spans[b].first_token + rows[b].scored; ++t) {
      count(t) = 0;
      for (std::int64_t i = 0; i < index.dim(1); ++i) {
        index(t, i) = -1;
      }
    }
  }
}

std::vector<Task> scored_tasks(const std::vector<cache::Request>& spans, const std::vector<RowsToMake>& rows,
                               std::int64_t at_once) {
  std::vector<Task> tasks;
  for (std::size_t b = 0; b < spans.size(); ++b) {
    const cache::Request& span = spans[b];
    for (std::int64_t row = rows[b].scored; row < rows[b].end; row += at_once) {
      tasks.push_back({static_cast<std::int64_t>(b), span.first_token + row, span.context_len() + row,
                       std::min(at_once, rows[b].end - row)});
    }
  }
  return tasks;
}

}  // namespace
}  // namespace selection

std::int64_t select_workspace_minimum(const IndexerGeometry& indexer, std::int64_t longest_seq_len) {
  indexer.validate();
  return selection::Worker::bytes(indexer, {1, selection::kMinCandidates},
                                  selection::kept_of(indexer, longest_seq_len));
}

void select(const IndexerGeometry& indexer, DType compute, const CacheView& cache, const IndexQueries& queries,
            const Requests& requests, View<const std::int64_t> scoring_begin, View<std::int32_t> index,
            View<std::int32_t> count, std::int64_t workspace_bytes, int threads, TokenRange rows) {
  using namespace selection;
  validate_index_cache(indexer, compute, cache);
  validate_queries(indexer, compute, queries);
  const std::int64_t tokens = queries.query.dim(0);
  const std::vector<cache::Request> spans = cache::validate_requests(requests, tokens);
  const std::vector<RowsToMake> to_make = rows_to_make(spans, scoring_begin, within_step(rows, tokens));
  expect_columns(index, tokens, indexer.rule().width());
  count.expect("selection count", {tokens});
  const std::int64_t longest = validate_scored(cache, requests, spans, to_make);
  if (longest == 0) {
    clear_rows(spans, to_make, index, count);
    return;
  }
  const Cut cut = fit(indexer, longest, workspace_bytes, threads);
  clear_rows(spans, to_make, index, count);

  const std::vector<Task> tasks = scored_tasks(spans, to_make, cut.block.rows);
  const auto task_count = static_cast<std::int64_t>(tasks.size());
  const int team = static_cast<int>(std::min<std::int64_t>(cut.threads, task_count));
  std::vector<Worker> workers;
  workers.reserve(static_cast<std::size_t>(team));
  for (int i = 0; i < team; ++i) {
    workers.emplace_back(indexer, cut.block, kept_of(indexer, longest));
  }
  const Selector selector(indexer, compute, cache, queries, requests, index, count);
  device::parallel_for(task_count, team, [&](std::int64_t i, int thread) {
    selector.run(tasks[static_cast<std::size_t>(i)], workers[static_cast<std::size_t>(thread)]);
  });
}

}  // namespace headrace
