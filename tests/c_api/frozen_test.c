/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of the first version: built on the copy of the C interface's header that was kept then, linked with the
 * library of today. It plans, appends, selects and attends on the processor, and compares with sums written out here.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_api_0_1.h"

enum {
  HEADS = 3,
  RANK = 32,
  NOPE = 16,
  ROPE = 8,
  QK = NOPE + ROPE,
  VALUE = 16,
  TOPK = 8,
  INDEX_HEADS = 2,
  INDEX_DIM = 8,
  PAGE = 4,
  PAGES = 7, /* two of request 0, five of request 1 */
  KEYS = 25, /* of both requests */
  TOKENS = 11
};
static const int32_t query_len[2] = {5, 6};
static const int32_t seq_len[2] = {5, 20};
static const int32_t query_start[3] = {0, 5, 11};
static const int32_t all_start[3] = {0, 5, 25};
static const int32_t pages[2][5] = {{6, 0, -1, -1, -1}, {3, 1, 5, 2, 4}};

static int failures = 0;

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      ++failures;                                                    \
      printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                \
  } while (0)

/* Ends the program where an error came. */
static void well(HrError* error, int line) {
  if (error != NULL) {
    printf("line %d: %s\n", line, hr_error_message(error));
    exit(1);
  }
}
#define WELL(call) well(call, __LINE__)

/* Whether the error is of that kind, names that argument, and has a message that does too. Frees it. */
static int is_error(HrError* error, int32_t kind, const char* argument) {
  int result = 0;
  if (error == NULL) {
    printf("no error, where one on %s was expected\n", argument);
    return 0;
  }
  result = hr_error_kind(error) == kind && strcmp(hr_error_argument(error), argument) == 0 &&
           strstr(hr_error_message(error), argument) != NULL && hr_error_expected(error)[0] != '\0' &&
           hr_error_actual(error)[0] != '\0';
  if (!result) {
    printf("instead of kind %d on %s: kind %d, %s\n", (int)kind, argument, (int)hr_error_kind(error),
           hr_error_message(error));
  }
  hr_error_free(error);
  return result;
}

static uint32_t state = 12345;
static float draw(void) { /* about a normal deviate's size, in (-1.5, 1.5) */
  state = state * 1664525u + 1013904223u;
  return ((float)(state >> 8) / 16777216.0f - 0.5f) * 3.0f;
}
static void fill(float* to, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) {
    to[i] = draw();
  }
}

static HrView view(const void* data, int32_t dtype, int32_t rank, int64_t a, int64_t b, int64_t c) {
  HrView result;
  memset(&result, 0, sizeof result);
  result.data = (void*)(uintptr_t)data;
  result.dtype = dtype;
  result.rank = rank;
  result.shape[0] = a;
  result.shape[1] = b;
  result.shape[2] = c;
  result.stride[rank - 1] = 1;
  if (rank > 1) {
    result.stride[rank - 2] = result.shape[rank - 1];
  }
  if (rank > 2) {
    result.stride[0] = b * c;
  }
  return result;
}

static HrAttention small_attention(void) {
  HrAttention attention;
  memset(&attention, 0, sizeof attention);
  attention.size = sizeof attention;
  attention.num_heads = HEADS;
  attention.kv_lora_rank = RANK;
  attention.qk_nope_head_dim = NOPE;
  attention.qk_rope_head_dim = ROPE;
  attention.v_head_dim = VALUE;
  attention.scale = 0.2;
  attention.rule = HR_RULE_LIGHTNING;
  attention.topk = TOPK;
  attention.compute = HR_FLOAT32;
  attention.format = HR_CACHE_FLOAT32;
  attention.space = HR_REQUEST_POSITION;
  return attention;
}

static HrBatch small_batch(void) {
  HrBatch batch;
  memset(&batch, 0, sizeof batch);
  batch.size = sizeof batch;
  batch.requests = 2;
  batch.query_len = query_len;
  batch.seq_len_bound = seq_len;
  batch.exact = 1;
  return batch;
}

static HrLimits one_thread(void) {
  HrLimits limits;
  memset(&limits, 0, sizeof limits);
  limits.size = sizeof limits;
  limits.threads = 1;
  return limits;
}

static HrCache cache_on(void* data, int64_t row_bytes) {
  HrCache cache;
  memset(&cache, 0, sizeof cache);
  cache.data = data;
  cache.num_pages = PAGES;
  cache.page_size = PAGE;
  cache.row_stride = row_bytes;
  cache.page_stride = PAGE * row_bytes;
  return cache;
}

static HrRequests requests_from(const int32_t* start) {
  HrRequests requests;
  requests.query_start = view(start, HR_INT32, 1, 3, 0, 0);
  requests.seq_len = view(seq_len, HR_INT32, 1, 2, 0, 0);
  requests.block_table = view(pages, HR_INT32, 2, 2, 5, 0);
  return requests;
}

/* Everything of the step, in the program's memory. */
static float latent[KEYS][RANK];
static float rope_key[KEYS][ROPE];
static float index_key[KEYS][INDEX_DIM];
static int64_t slots[KEYS];
static float q[TOKENS][HEADS][QK];
static float kv_b_proj[HEADS][NOPE + VALUE][RANK];
static float sink[HEADS];
static float index_query[TOKENS][INDEX_HEADS][INDEX_DIM];
static float head_weight[TOKENS][INDEX_HEADS];
static int32_t selected[TOKENS][TOPK];
static int32_t count[TOKENS];
static float out[TOKENS][HEADS][VALUE];
static float lse[TOKENS][HEADS];

static void draw_step(void) {
  int b;
  int i;
  fill(&latent[0][0], KEYS * RANK);
  fill(&rope_key[0][0], KEYS * ROPE);
  fill(&index_key[0][0], KEYS * INDEX_DIM);
  fill(&q[0][0][0], TOKENS * HEADS * QK);
  fill(&kv_b_proj[0][0][0], HEADS * (NOPE + VALUE) * RANK);
  fill(sink, HEADS);
  fill(&index_query[0][0][0], TOKENS * INDEX_HEADS * INDEX_DIM);
  fill(&head_weight[0][0], TOKENS * INDEX_HEADS);
  for (b = 0; b < 2; ++b) {
    for (i = 0; i < seq_len[b]; ++i) {
      slots[all_start[b] + i] = pages[b][i / PAGE] * PAGE + i % PAGE;
    }
  }
}

static int request_of(int token) { return token < query_start[1] ? 0 : 1; }
static int position_of(int token) {
  const int b = request_of(token);
  return seq_len[b] - query_len[b] + token - query_start[b];
}

static double score_of(int token, int key) {
  double score = 0.0;
  int h;
  int d;
  for (h = 0; h < INDEX_HEADS; ++h) {
    double dot = 0.0;
    for (d = 0; d < INDEX_DIM; ++d) {
      dot += (double)index_query[token][h][d] * (double)index_key[all_start[request_of(token)] + key][d];
    }
    score += (double)head_weight[token][h] * (dot > 0.0 ? dot : 0.0);
  }
  return score;
}

/* How many keys beat this one. */
static int rank_of(int token, int key) {
  int better = 0;
  int other;
  for (other = 0; other <= position_of(token); ++other) {
    const double difference = score_of(token, other) - score_of(token, key);
    better += other != key && (difference > 0.0 || (difference == 0.0 && other < key)) ? 1 : 0;
  }
  return better;
}

static void check_selection(void) {
  int t;
  for (t = 0; t < TOKENS; ++t) {
    const int sees = position_of(t) + 1;
    int nth = 0;
    int key;
    if (t < query_start[1]) { /* covered, and left out by scoring_begin */
      CHECK(count[t] == 0);
      continue;
    }
    CHECK(count[t] == (sees < TOPK ? sees : TOPK));
    for (key = 0; key < sees; ++key) {
      if (rank_of(t, key) < TOPK) {
        CHECK(nth < TOPK && selected[t][nth] == key);
        ++nth;
      }
    }
  }
}

/* The score and the value of one key, by the up-projection. */
static double logit_of(int token, int head, int key) {
  const int at = all_start[request_of(token)] + key;
  double dot = 0.0;
  int d;
  int r;
  for (d = 0; d < NOPE; ++d) {
    double up = 0.0;
    for (r = 0; r < RANK; ++r) {
      up += (double)kv_b_proj[head][d][r] * (double)latent[at][r];
    }
    dot += (double)q[token][head][d] * up;
  }
  for (d = 0; d < ROPE; ++d) {
    dot += (double)q[token][head][NOPE + d] * (double)rope_key[at][d];
  }
  return 0.2 * dot;
}

static int attends(int token, int key) {
  int i;
  if (position_of(token) < TOPK) {
    return 1;
  }
  for (i = 0; i < count[token]; ++i) {
    if (selected[token][i] == key) {
      return 1;
    }
  }
  return 0;
}

static void check_attention(void) {
  int t;
  int h;
  int v;
  for (t = 0; t < TOKENS; ++t) {
    for (h = 0; h < HEADS; ++h) {
      double value[VALUE] = {0.0};
      double sum = 0.0;
      int key;
      for (key = 0; key <= position_of(t); ++key) {
        if (attends(t, key)) {
          const double weight = exp(logit_of(t, h, key));
          sum += weight;
          for (v = 0; v < VALUE; ++v) {
            int r;
            for (r = 0; r < RANK; ++r) {
              value[v] +=
                  weight * (double)kv_b_proj[h][NOPE + v][r] * (double)latent[all_start[request_of(t)] + key][r];
            }
          }
        }
      }
      CHECK(fabs((double)lse[t][h] - log(sum)) < 1e-4);
      for (v = 0; v < VALUE; ++v) {
        CHECK(fabs((double)out[t][h][v] - value[v] / (sum + exp((double)sink[h]))) < 1e-3);
      }
    }
  }
}

/* With queries of zero all attended keys count the same. */
static void check_zero_queries(void) {
  int t;
  int h;
  for (t = 0; t < TOKENS; ++t) {
    const int sees = position_of(t) + 1;
    for (h = 0; h < HEADS; ++h) {
      CHECK(fabs((double)lse[t][h] - log((double)(sees < TOPK ? sees : TOPK))) < 1e-5);
    }
  }
}

static void* aligned(void* memory, size_t alignment) {
  const size_t left = (size_t)((uintptr_t)memory % alignment);
  return (char*)memory + (left == 0 ? 0 : alignment - left);
}

static void run_a_step(void) {
  const HrAttention attention = small_attention();
  const HrBatch batch = small_batch();
  const HrLimits limits = one_thread();
  HrIndexer indexer = {.size = sizeof indexer};
  HrPlan* plan = NULL;
  HrRequestPlan planned[2];
  int64_t begins[2];
  int64_t row_bytes = 0;
  int64_t columns = 0;
  int64_t scored = 0;
  float scores[20];
  HrAppendCall append = {.size = sizeof append};
  HrAppendIndexKeysCall append_keys = {.size = sizeof append_keys};
  HrSelectCall select = {.size = sizeof select};
  float all_scores[TOKENS][20];
  HrScoreRowsCall score_rows = {.size = sizeof score_rows};
  HrScoreRowCall score_row = {.size = sizeof score_row};
  HrAttendCall attend = {.size = sizeof attend};
  void* cache;
  void* index_cache;
  void* workspace;
  const char* text = NULL;
  int i;

  draw_step();
  WELL(hr_plan_create(&attention, &batch, &limits, NULL, &plan));
  CHECK(hr_plan_request_count(plan) == 2);
  WELL(hr_plan_requests(plan, 0, 2, planned, sizeof planned[0]));
  CHECK(planned[0].query_len == 5 && planned[0].context_len == 0 && planned[0].skip_scoring == 1);
  CHECK(planned[1].query_len == 6 && planned[1].context_len == 14 && planned[1].skip_scoring == 0);
  CHECK(planned[1].scoring_begin == 14);
  CHECK(planned[1].path == HR_MASKED_MHA || planned[1].path == HR_TOPK_MQA);
  CHECK(planned[0].predicted_ms > 0.0);
  WELL(hr_plan_explain(plan, &text));
  CHECK(strstr(text, "request 1") != NULL);
  WELL(hr_plan_reason(plan, 0, &text));
  CHECK(text[0] != '\0');
  CHECK(hr_plan_table_bytes(plan) == 0);

  WELL(hr_cache_row_bytes(&attention, &row_bytes));
  CHECK(row_bytes == 4 * (RANK + ROPE));
  cache = malloc((size_t)(PAGES * PAGE * row_bytes));
  append.cache = cache_on(cache, row_bytes);
  append.latent = view(latent, HR_FLOAT32, 2, KEYS, RANK, 0);
  append.rope_key = view(rope_key, HR_FLOAT32, 2, KEYS, ROPE, 0);
  append.slot_mapping = view(slots, HR_INT64, 1, KEYS, 0, 0);
  append.threads = 1;
  WELL(hr_append(&attention, &append));
  CHECK(memcmp((char*)cache + slots[7] * row_bytes, latent[7], sizeof latent[7]) == 0);

  indexer.num_heads = INDEX_HEADS;
  indexer.head_dim = INDEX_DIM;
  indexer.topk = TOPK;
  indexer.compute = HR_FLOAT32;
  WELL(hr_index_row_bytes(&indexer, &row_bytes));
  CHECK(row_bytes == 4 * INDEX_DIM);
  WELL(hr_select_width(&indexer, &columns));
  CHECK(columns == TOPK);
  index_cache = malloc((size_t)(PAGES * PAGE * row_bytes));
  append_keys.cache = cache_on(index_cache, row_bytes);
  append_keys.key = view(index_key, HR_FLOAT32, 2, KEYS, INDEX_DIM, 0);
  append_keys.requests = requests_from(all_start);
  append_keys.slot_mapping = append.slot_mapping;
  append_keys.threads = 1;
  WELL(hr_append_index_keys(&indexer, &append_keys));

  for (i = 0; i < 2; ++i) {
    begins[i] = planned[i].scoring_begin;
  }
  select.cache = append_keys.cache;
  select.query = view(index_query, HR_FLOAT32, 3, TOKENS, INDEX_HEADS, INDEX_DIM);
  select.head_weight = view(head_weight, HR_FLOAT32, 2, TOKENS, INDEX_HEADS, 0);
  select.requests = requests_from(query_start);
  select.scoring_begin = view(begins, HR_INT64, 1, 2, 0, 0);
  select.index = view(selected, HR_INT32, 2, TOKENS, TOPK, 0);
  select.count = view(count, HR_INT32, 1, TOKENS, 0, 0);
  select.threads = 1;
  WELL(hr_select_workspace_minimum(&indexer, 20, &select.workspace.bytes));
  /* In two parts, as two ranks would. */
  memset(count, -1, sizeof count);
  select.some_rows = 1;
  select.rows_end = 7;
  WELL(hr_select(&indexer, &select));
  CHECK(count[6] == TOPK && count[7] == -1);
  select.rows_begin = 7;
  select.rows_end = TOKENS;
  WELL(hr_select(&indexer, &select));
  check_selection();

  score_row.cache = select.cache;
  score_row.query = select.query;
  score_row.head_weight = select.head_weight;
  score_row.requests = select.requests;
  score_row.request = 1;
  score_row.token = 7;
  score_row.scores = view(scores, HR_FLOAT32, 1, 20, 0, 0);
  WELL(hr_score_row(&indexer, &score_row, &scored));
  CHECK(scored == position_of(7) + 1);
  for (i = 0; i < scored; ++i) {
    CHECK(fabs((double)scores[i] - score_of(7, i)) < 1e-4);
  }

  for (i = 0; i < TOKENS * 20; ++i) {
    (&all_scores[0][0])[i] = -7.0f;
  }
  score_rows.cache = select.cache;
  score_rows.query = select.query;
  score_rows.head_weight = select.head_weight;
  score_rows.requests = select.requests;
  score_rows.scores = view(all_scores, HR_FLOAT32, 2, TOKENS, 20, 0);
  score_rows.some_rows = 1;
  score_rows.rows_begin = 3;
  score_rows.rows_end = TOKENS;
  WELL(hr_score_rows(&indexer, &score_rows));
  CHECK(memcmp(all_scores[7], scores, (size_t)scored * sizeof scores[0]) == 0);
  CHECK(all_scores[2][0] == -7.0f);
  CHECK(fabs((double)all_scores[3][2] - score_of(3, 2)) < 1e-4 && all_scores[3][4] == -7.0f);

  attend.q = view(q, HR_FLOAT32, 3, TOKENS, HEADS, QK);
  attend.kv_b_proj = view(kv_b_proj, HR_FLOAT32, 2, HEADS * (NOPE + VALUE), RANK, 0);
  attend.sink = view(sink, HR_FLOAT32, 1, HEADS, 0, 0);
  attend.cache = append.cache;
  attend.requests = select.requests;
  attend.index = select.index;
  attend.count = select.count;
  attend.out = view(out, HR_FLOAT32, 3, TOKENS, HEADS, VALUE);
  attend.lse = view(lse, HR_FLOAT32, 2, TOKENS, HEADS, 0);
  attend.workspace.bytes = hr_plan_workspace_bytes(plan);
  workspace = malloc((size_t)attend.workspace.bytes + 64);
  attend.workspace.data = aligned(workspace, 64);
  WELL(hr_attend(plan, &attend));
  check_attention();

  memset(q, 0, sizeof q);
  WELL(hr_attend(plan, &attend));
  check_zero_queries();

  /* What a call refuses, and how it says so. */
  attend.out.data = lse;
  attend.out.dtype = HR_INT32;
  CHECK(is_error(hr_attend(plan, &attend), HR_MISUSE, "out"));
  attend.out.dtype = 77;
  CHECK(is_error(hr_attend(plan, &attend), HR_MISUSE, "out"));
  attend.out = view(out, HR_FLOAT32, 3, TOKENS, HEADS, VALUE);
  attend.workspace.bytes -= 1;
  CHECK(is_error(hr_attend(plan, &attend), HR_MISUSE, "workspace"));
  memset(&attend.q, 0, sizeof attend.q);
  CHECK(is_error(hr_attend(plan, &attend), HR_MISUSE, "q"));
  CHECK(is_error(hr_attend(plan, NULL), HR_MISUSE, "call"));

  hr_plan_free(plan);
  free(cache);
  free(index_cache);
  free(workspace);
}

/* Structures of another size than the library's own. */
static void check_sizes(void) {
  struct {
    HrLimits limits;
    char beyond[16];
  } newer;
  const HrAttention attention = small_attention();
  HrBatch batch = small_batch();
  HrPlan* plan = NULL;
  char wide[2][64];
  HrRequestPlan first;

  memset(&newer, 0, sizeof newer);
  newer.limits.threads = 1;
  newer.limits.size = sizeof newer;
  WELL(hr_plan_create(&attention, &batch, &newer.limits, NULL, &plan));
  /* Elements of an array may be longer too: what the library does not know is zero. */
  memset(wide, 1, sizeof wide);
  WELL(hr_plan_requests(plan, 0, 2, (HrRequestPlan*)(void*)wide, sizeof wide[0]));
  memcpy(&first, wide[1], sizeof first);
  CHECK(first.context_len == 14);
  CHECK(wide[0][63] == 0 && wide[1][63] == 0);
  CHECK(is_error(hr_plan_requests(plan, 0, 2, &first, sizeof first - 8), HR_MISUSE, "stride"));
  CHECK(is_error(hr_plan_requests(plan, 1, 2, &first, sizeof first), HR_MISUSE, "begin and count"));
  hr_plan_free(plan);
  plan = NULL;

  newer.beyond[15] = 1; /* a field that only a later library would know */
  CHECK(is_error(hr_plan_create(&attention, &batch, &newer.limits, NULL, &plan), HR_UNSUPPORTED, "limits"));
  newer.limits.size = sizeof newer.limits - 8;
  CHECK(is_error(hr_plan_create(&attention, &batch, &newer.limits, NULL, &plan), HR_MISUSE, "limits.size"));
  newer.limits.size = 0;
  CHECK(is_error(hr_plan_create(&attention, &batch, &newer.limits, NULL, &plan), HR_MISUSE, "limits.size"));
  batch.size = (size_t)-1;
  CHECK(is_error(hr_plan_create(&attention, &batch, NULL, NULL, &plan), HR_MISUSE, "batch.size"));
  CHECK(plan == NULL);
}

static void check_kinds(void) {
  const HrLimits limits = one_thread();
  HrAttention attention = small_attention();
  HrBatch batch = small_batch();
  HrHints hints = {.size = sizeof hints};
  HrIndexer indexer = {.size = sizeof indexer};
  HrPlan* plan = NULL;
  HrDevice* device = NULL;
  int64_t bytes = 0;

  hints.force = HR_DENSE_MHA; /* which cannot serve what lightning does not cover */
  CHECK(is_error(hr_plan_create(&attention, &batch, &limits, &hints, &plan), HR_UNSUPPORTED, "force"));
  hints.force = 9;
  CHECK(is_error(hr_plan_create(&attention, &batch, &limits, &hints, &plan), HR_MISUSE, "force"));
  if (hr_device_count() == 0) {
    CHECK(is_error(hr_device_create(0, &device), HR_UNSUPPORTED, "device"));
  } else {
    CHECK(is_error(hr_device_create(hr_device_count(), &device), HR_MISUSE, "device"));
  }
  CHECK(is_error(hr_workspace_bound(&attention, &limits, &bytes), HR_MISUSE, "limits"));
  attention.rule = 0;
  CHECK(is_error(hr_plan_create(&attention, &batch, &limits, NULL, &plan), HR_MISUSE, "attention.rule"));
  attention = small_attention();
  attention.reserved = 1;
  CHECK(is_error(hr_plan_create(&attention, &batch, &limits, NULL, &plan), HR_MISUSE, "attention.reserved"));
  batch.exact = 2;
  attention.reserved = 0;
  CHECK(is_error(hr_plan_create(&attention, &batch, &limits, NULL, &plan), HR_MISUSE, "batch.exact"));
  CHECK(plan == NULL && device == NULL);
  if (hr_device_count() == 0) {
    int64_t least = 0;
    int64_t useful = 0;
    indexer.num_heads = 2;
    indexer.head_dim = 16;
    indexer.topk = 8;
    indexer.compute = HR_BFLOAT16;
    CHECK(is_error(hr_cuda_select_workspace(&indexer, 1, 1, &least, &useful), HR_UNSUPPORTED, "device"));
  }
  hr_plan_free(NULL);
  hr_device_free(NULL);
  hr_error_free(NULL);
}

int main(void) {
  printf("library %s\n", hr_version());
  run_a_step();
  check_sizes();
  check_kinds();
  printf(failures == 0 ? "all well\n" : "failed\n");
  return failures == 0 ? 0 : 1;
}
