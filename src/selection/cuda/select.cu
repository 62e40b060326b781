// SPDX-License-Identifier: Apache-2.0
//
// The indexer's scores and its choice, for a block of rows after the other that fits the workspace: two kernels each.
//
// scores  (score.cuh) A block of 128 threads takes 128 candidates (keys, or pools of keys) and 16 tokens. Each of its
//         warps has 32 candidates and multiplies them with 32 heads of one token at a time: candidates are the rows of
//         the tensor core's tile and heads its columns, so that a lane adds its heads up in registers and the four
//         lanes of a candidate add up once a token. Values go through shared memory 128 at a time; with head dims of up
//         to 128 the candidates' keys stay there for all tokens.
//         Shared memory: keys 128 x 272 bytes, queries 32 x 272 (16 bytes of each row keep rows in different banks),
//         row addresses 1 KiB: 44.7 KB. Registers: 96, of which 32 hold products.
//         Each score is summed over the dims 16 at a time and over the heads in an order that depends on the indexer
//         alone, whatever the block holds beside it.
//         Floor: 2 heads D FLOPs a row and candidate. 8,192 rows that see 8,192 keys, 32 heads of 128, causal: 275
//         GFLOP, 0.28 ms at 989 TFLOP/s; these instructions reach some 60 % of that rate, and wgmma would be needed
//         for more.
// select  A block of 256 threads a row finds the best scores (topk.cuh) and writes the row of the selection.
//         Shared memory: 8.2 KB. Bytes: four reads of the row's scores, which are in the L2 cache as a block of rows
//         takes 32 MiB at most; the same example reads 0.54 GB, 0.1 ms at 5.5 TB/s.
//
// Grids come from bounds; lengths and pages are read on the device, and what a row does not see is not scored.

#include <algorithm>
#include <string>

#include "device/cuda/check.cuh"
#include "device/cuda/current.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.cuh"
#include "headrace/cuda_indexer.h"
#include "headrace/error.h"
#include "selection/candidates.h"
#include "selection/cuda/score.cuh"
#include "selection/cuda/select.h"
#include "selection/cuda/step.cuh"
#include "selection/cuda/topk.cuh"
#include "selection/index_cache.h"
#include "selection/lightning.h"
#include "selection/token_range.h"

namespace headrace::selection::cuda {
namespace {

constexpr int kTokens = 16;  // of a block of scores

/// Scores that a block of rows may take: they are to stay in the L2 cache.
constexpr std::int64_t kScoreBytes = std::int64_t{32} << 20;
/// The grid's second dimension ends here.
constexpr std::int64_t kMostRows = std::int64_t{65535} * kTokens;

__global__ void __launch_bounds__(RunScorer::kThreads) score_kernel(const ScoreParams p) {
  __shared__ RunScorer::Tile tile;
  const std::int64_t first_candidate = static_cast<std::int64_t>(blockIdx.x) * RunScorer::kCandidates;
  std::int64_t token = p.first_token + static_cast<std::int64_t>(blockIdx.y) * kTokens;
  const std::int64_t end = min(token + kTokens, p.end_token);
  while (token < end) {
    const Run run = find_run(p, token, end, first_candidate);
    if (run.begin < run.end) {
      RunScorer(p, tile, run, first_candidate).run();
    }
    token = run.next;
  }
}

struct SelectParams {
  ScoreParams scoring;
  std::int64_t budget;  // candidates that a row takes at most
  bool tail;
  std::int32_t* index;
  std::int32_t* count;
  std::int64_t index_row_stride;
  std::int64_t index_stride;
  std::int64_t count_stride;
  std::int64_t width;
};

__global__ void __launch_bounds__(BlockTopK::kThreads) select_kernel(const SelectParams p) {
  __shared__ BlockTopK::Storage storage;
  const ScoreParams& scoring = p.scoring;
  const std::int64_t pool = scoring.pool;
  const std::int64_t row_at_hand = blockIdx.x;
  const std::int64_t token = scoring.first_token + row_at_hand;
  std::int32_t* const out = p.index + token * p.index_row_stride;
  const Row row = scoring.requests.find_row(token);
  const bool scored =
      row.request >= 0 && row.position < scoring.longest && row.position >= scoring.begin_of(row.request);

  const std::int64_t keys = scored ? row.position + 1 : 0;
  const std::int64_t seen = keys / pool;
  const auto take = [&](std::int64_t nth, std::int64_t candidate) {
    for (std::int64_t i = 0; i < pool; ++i) {
      out[(nth * pool + i) * p.index_stride] = static_cast<std::int32_t>(candidate * pool + i);
    }
  };
  if (seen > p.budget) {
    BlockTopK(scoring.scores + row_at_hand * scoring.pitch, seen, storage).take_best(p.budget, take);
  } else {
    for (std::int64_t c = threadIdx.x; c < seen; c += BlockTopK::kThreads) {
      take(c, c);
    }
  }
  const std::int64_t chosen = min(seen, p.budget) * pool;
  const std::int64_t tail = p.tail ? keys - seen * pool : 0;
  for (std::int64_t i = chosen + threadIdx.x; i < p.width; i += BlockTopK::kThreads) {
    out[i * p.index_stride] = i < chosen + tail ? static_cast<std::int32_t>(seen * pool + i - chosen) : -1;
  }
  if (threadIdx.x == 0) {
    p.count[token * p.count_stride] = static_cast<std::int32_t>(chosen + tail);
  }
}

/// How many candidates a row may see, and how far apart rows of scores lie: rows begin at multiples of 16 bytes.
struct ScoreRows {
  std::int64_t candidates = 0;
  std::int64_t pitch = 0;

  ScoreRows(const IndexerGeometry& indexer, std::int64_t longest_seq_len)
      : candidates(Candidates::of(indexer).among(longest_seq_len)), pitch((candidates + 3) / 4 * 4) {}
  [[nodiscard]] std::int64_t bytes() const { return pitch * static_cast<std::int64_t>(sizeof(float)); }
};

/// Rows at once that are worth their memory.
std::int64_t useful_rows(std::int64_t tokens, const ScoreRows& rows) {
  const std::int64_t tiles = std::max<std::int64_t>(1, kScoreBytes / rows.bytes() / kTokens);
  return std::min({tokens, tiles * kTokens, kMostRows});
}

void expect(bool well, const char* name, const char* expected, std::int64_t actual) {
  if (!well) {
    throw Error(name, expected, std::to_string(actual));
  }
}

void validate_bound(std::int64_t longest_seq_len) {
  expect(longest_seq_len >= 0 && longest_seq_len <= INT32_MAX, "longest_seq_len", "a number in [0, 2^31)",
         longest_seq_len);
}

/// Blocks and tokens are counted in 32 bits.
void validate_tokens(std::int64_t tokens) {
  expect(tokens >= 0 && tokens <= INT32_MAX, "tokens", "a number in [0, 2^31)", tokens);
}

void validate(const IndexerGeometry& indexer, const CacheView& cache, const IndexQueries& queries,
              const Requests& requests, std::int64_t longest_seq_len) {
  validate_index_cache(indexer, DType::bfloat16, cache);
  for (const std::string& reason : unmet_requirements(indexer)) {
    throw UnsupportedError("indexer", "one that the score kernel serves", reason);
  }
  validate_queries(indexer, DType::bfloat16, queries);
  expect(queries.query.strides()[2] == 1, "index query", "contiguous rows", queries.query.strides()[2]);
  requests.seq_len.expect("seq_len", {-1});
  requests.query_start.expect("query_start", {requests.seq_len.dim(0) + 1});
  requests.block_table.expect("block_table", {requests.seq_len.dim(0), -1});
  validate_bound(longest_seq_len);
  validate_tokens(queries.query.dim(0));
}

/// Whether every row of keys and queries begins at a multiple of 16 bytes.
bool suits_vectors(const CacheView& cache, const ConstAnyView& query) {
  constexpr std::int64_t kAlignment = sizeof(uint4);
  const auto address = [](const void* data) {
    return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(data));
  };
  return (address(cache.data) | cache.page_stride | cache.row_stride | address(query.data()) | query.strides()[0] * 2 |
          query.strides()[1] * 2) %
             kAlignment ==
         0;
}

/// For every row; which tokens are at hand and where their scores go is left open.
ScoreParams make_params(const IndexerGeometry& indexer, const CacheView& cache, const IndexQueries& queries,
                        const Requests& requests, std::int64_t longest_seq_len) {
  return {
      .cache = Pages<const std::byte>(cache),
      .requests = DeviceRequests(requests),
      .query = static_cast<const __nv_bfloat16*>(queries.query.data()),
      .weight = queries.head_weight.data(),
      .query_row_stride = queries.query.strides()[0],
      .query_head_stride = queries.query.strides()[1],
      .weight_row_stride = queries.head_weight.stride(0),
      .weight_head_stride = queries.head_weight.stride(1),
      .heads = indexer.num_heads,
      .dim = indexer.head_dim,
      .vector = suits_vectors(cache, queries.query),
      .scoring_begin = nullptr,
      .scoring_begin_stride = 0,
      .longest = longest_seq_len,
      .pool = Candidates::of(indexer).pool,
      .not_scored = 0,
      .first_token = 0,
      .end_token = 0,
      .scores = nullptr,
      .pitch = 0,
  };
}

void launch_scores(const ScoreParams& params, std::int64_t candidates, Stream stream) {
  const auto blocks = [](std::int64_t n, int unit) { return static_cast<unsigned>((n + unit - 1) / unit); };
  const dim3 grid(blocks(candidates, RunScorer::kCandidates), blocks(params.end_token - params.first_token, kTokens));
  device::cuda::launch("index scores", score_kernel, grid, RunScorer::kThreads, 0, stream, params);
}

void launch_select(const SelectParams& params, Stream stream) {
  const auto blocks = static_cast<unsigned>(params.scoring.end_token - params.scoring.first_token);
  device::cuda::launch("index selection", select_kernel, blocks, BlockTopK::kThreads, 0, stream, params);
}

}  // namespace

std::vector<std::string> unmet_requirements(const IndexerGeometry& indexer) {
  std::vector<std::string> unmet;
  if (indexer.head_dim % RunScorer::kStep != 0) {
    unmet.push_back("its kernel multiplies 16 values at a time, and the indexer's head_dim is " +
                    std::to_string(indexer.head_dim));
  }
  return unmet;
}

void load_select() {
  cudaFuncAttributes attributes{};
  device::cuda::check(cudaFuncGetAttributes(&attributes, score_kernel), "index scores");
  device::cuda::check(cudaFuncGetAttributes(&attributes, select_kernel), "index selection");
}

}  // namespace headrace::selection::cuda

namespace headrace {

SelectWorkspace cuda_select_workspace(const IndexerGeometry& indexer, std::int64_t tokens,
                                      std::int64_t longest_seq_len) {
  using namespace selection::cuda;
  indexer.validate();
  validate_tokens(tokens);
  validate_bound(longest_seq_len);
  const ScoreRows rows(indexer, longest_seq_len);
  if (rows.candidates <= selection::Candidates::of(indexer).budget) {
    return {};
  }
  return {rows.bytes(), std::max<std::int64_t>(1, useful_rows(tokens, rows)) * rows.bytes()};
}

void select(const IndexerGeometry& indexer, const CacheView& cache, const IndexQueries& queries,
            const Requests& requests, View<const std::int64_t> scoring_begin, std::int64_t longest_seq_len,
            View<std::int32_t> index, View<std::int32_t> count, std::span<std::byte> workspace,
            const CudaDevice& device, Stream stream, TokenRange rows) {
  using namespace selection::cuda;
  validate(indexer, cache, queries, requests, longest_seq_len);
  const std::int64_t tokens = queries.query.dim(0);
  const TokenRange range = selection::within_step(rows, tokens);
  if (!scoring_begin.empty()) {
    scoring_begin.expect("scoring_begin", {requests.seq_len.dim(0)});
  }
  selection::expect_columns(index, tokens, indexer.rule().width());
  count.expect("selection count", {tokens});
  if (range.begin == range.end) {
    return;
  }
  const auto workspace_bytes = static_cast<std::int64_t>(workspace.size());
  const std::int64_t least = cuda_select_workspace(indexer, 1, longest_seq_len).least;
  if (workspace_bytes < least) {
    throw Error("workspace", "at least " + std::to_string(least) + " bytes", std::to_string(workspace_bytes));
  }
  const auto misaligned =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(workspace.data()) % sizeof(float4));
  expect(misaligned == 0, "workspace", "an address divisible by 16", misaligned);

  const device::cuda::CurrentDevice current(device::cuda::served_ordinal(device));
  const selection::Candidates candidates = selection::Candidates::of(indexer);
  SelectParams params{
      .scoring = make_params(indexer, cache, queries, requests, longest_seq_len),
      .budget = candidates.budget,
      .tail = candidates.tail,
      .index = index.data(),
      .count = count.data(),
      .index_row_stride = index.stride(0),
      .index_stride = index.stride(1),
      .count_stride = count.stride(0),
      .width = index.dim(1),
  };
  ScoreParams& scoring = params.scoring;
  scoring.not_scored = candidates.budget;
  if (!scoring_begin.empty()) {
    scoring.scoring_begin = scoring_begin.data();
    scoring.scoring_begin_stride = scoring_begin.stride(0);
  }
  if (least == 0) {
    scoring.first_token = range.begin;
    scoring.end_token = range.end;
    launch_select(params, stream);
    return;
  }
  const ScoreRows score_rows(indexer, longest_seq_len);
  scoring.scores = reinterpret_cast<float*>(workspace.data());
  scoring.pitch = score_rows.pitch;
  std::int64_t at_once =
      std::min(useful_rows(range.end - range.begin, score_rows), workspace_bytes / score_rows.bytes());
  at_once -= at_once > kTokens ? at_once % kTokens : 0;
  for (std::int64_t token = range.begin; token < range.end; token += at_once) {
    scoring.first_token = token;
    scoring.end_token = std::min(range.end, token + at_once);
    launch_scores(scoring, score_rows.candidates, stream);
    launch_select(params, stream);
  }
}

void score_rows(const IndexerGeometry& indexer, const CacheView& cache, const IndexQueries& queries,
                const Requests& requests, std::int64_t longest_seq_len, View<float> scores, const CudaDevice& device,
                Stream stream, TokenRange rows) {
  using namespace selection::cuda;
  validate(indexer, cache, queries, requests, longest_seq_len);
  const std::int64_t tokens = queries.query.dim(0);
  const TokenRange range = selection::within_step(rows, tokens);
  const ScoreRows score_rows(indexer, longest_seq_len);
  scores.expect("scores", {tokens, -1});
  expect(scores.dim(1) >= score_rows.candidates, "scores", "as many columns as a row sees candidates", scores.dim(1));
  expect(scores.stride(1) == 1, "scores", "contiguous rows", scores.stride(1));
  if (score_rows.candidates == 0 || range.begin == range.end) {
    return;
  }
  const device::cuda::CurrentDevice current(device::cuda::served_ordinal(device));
  ScoreParams params = make_params(indexer, cache, queries, requests, longest_seq_len);
  params.pitch = scores.stride(0);
  for (std::int64_t token = range.begin; token < range.end; token += kMostRows) {
    params.first_token = token;
    params.end_token = std::min(range.end, token + kMostRows);
    params.scores = scores.at(token);
    launch_scores(params, score_rows.candidates, stream);
  }
}

}  // namespace headrace
