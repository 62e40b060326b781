/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's call in C: one rank of a GLM-5.3-Flash layer on 4 ranks computes a prompt of 300 tokens, and one new
 * token after 500 cached ones. All values are zero, so that every attended key has score 0, and the log-sum-exp of the
 * last row is ln 501. */
#include <stdio.h>
#include <stdlib.h>

#include "headrace/c_api.h"

enum { HEADS = 16, RANK = 512, NOPE = 256, VALUE = 256, TOKENS = 301, PAGE = 64, PAGES = 13 };

/* Ends the program on an error, which says what was wrong, what was expected and what came. */
static void check(HrError* error) {
  if (error != NULL) {
    fprintf(stderr, "%s (kind %d)\n", hr_error_message(error), (int)hr_error_kind(error));
    hr_error_free(error);
    exit(1);
  }
}

/* Memory for so many elements, all zero, which is at a multiple of 64 bytes and lives as long as the program. */
static void* zeros(int64_t count, size_t element) {
  static void* kept[8];
  static int taken = 0;
  char* const memory = calloc((size_t)count * element + 64, 1);
  if (memory == NULL || taken == 8) {
    fprintf(stderr, "no memory\n");
    exit(1);
  }
  kept[taken++] = memory;
  return memory + (64 - (uintptr_t)memory % 64) % 64;
}

/* Contiguous and row-major; a size of 0 ends the shape. */
static HrView view(void* data, int32_t dtype, int64_t a, int64_t b, int64_t c) {
  HrView result = {.data = data, .dtype = dtype, .shape = {a, b, c}};
  result.rank = b == 0 ? 1 : c == 0 ? 2 : 3;
  result.stride[0] = b == 0 ? 1 : c == 0 ? b : b * c;
  result.stride[1] = c == 0 ? 1 : c;
  result.stride[2] = 1;
  return result;
}

int main(void) {
  /* 1. What does not change from step to step. */
  const HrAttention attention = {.size = sizeof attention,
                                 .num_heads = HEADS,
                                 .kv_lora_rank = RANK,
                                 .qk_nope_head_dim = NOPE,
                                 .v_head_dim = VALUE,
                                 .scale = 1.0 / 16.0,
                                 .rule = HR_RULE_KPOOL,
                                 .topk = 2048,
                                 .pool = 4,
                                 .tail = 1,
                                 .compute = HR_BFLOAT16,
                                 .format = HR_CACHE_BFLOAT16,
                                 .space = HR_REQUEST_POSITION};

  /* 2. The step. The plan is made once. */
  int32_t query_len[] = {300, 1};
  int32_t seq_len[] = {300, 501};
  const HrBatch batch = {
      .size = sizeof batch, .requests = 2, .query_len = query_len, .seq_len_bound = seq_len, .exact = 1};
  HrPlan* plan = NULL;
  const char* text = NULL;
  check(hr_plan_create(&attention, &batch, NULL, NULL, &plan));
  check(hr_plan_explain(plan, &text));
  puts(text);

  /* 3. Where the keys lie: request 0 has pages 0 to 4, request 1 pages 5 to 12. */
  int64_t row = 0;
  check(hr_cache_row_bytes(&attention, &row));
  const HrCache cache = {.data = zeros(PAGES * PAGE, (size_t)row),
                         .num_pages = PAGES,
                         .page_size = PAGE,
                         .page_stride = PAGE * row,
                         .row_stride = row};
  int32_t query_start[] = {0, 300, 301};
  int32_t pages[2][8] = {{0, 1, 2, 3, 4, -1, -1, -1}, {5, 6, 7, 8, 9, 10, 11, 12}};
  const HrRequests requests = {.query_start = view(query_start, HR_INT32, 3, 0, 0),
                               .seq_len = view(seq_len, HR_INT32, 2, 0, 0),
                               .block_table = view(pages, HR_INT32, 2, 8, 0)};

  /* 4. For each layer: its new latents join the cache. */
  int64_t slots[TOKENS];
  for (int t = 0; t < TOKENS; ++t) {
    slots[t] = t < 300 ? t : 5 * PAGE + 500;
  }
  const HrAppendCall append = {.size = sizeof append,
                               .cache = cache,
                               .latent = view(zeros(TOKENS * RANK, 2), HR_BFLOAT16, TOKENS, RANK, 0),
                               .slot_mapping = view(slots, HR_INT64, TOKENS, 0, 0)};
  check(hr_append(&attention, &append));

  /* 5. Attention. Every row of this step is covered, so the selection is left out. */
  float* const lse = zeros(TOKENS * HEADS, sizeof *lse);
  const int64_t bytes = hr_plan_workspace_bytes(plan);
  const HrAttendCall call = {
      .size = sizeof call,
      .q = view(zeros(TOKENS * HEADS * NOPE, 2), HR_BFLOAT16, TOKENS, HEADS, NOPE),
      .kv_b_proj = view(zeros(HEADS * (NOPE + VALUE) * RANK, 2), HR_BFLOAT16, HEADS * (NOPE + VALUE), RANK, 0),
      .cache = cache,
      .requests = requests,
      .out = view(zeros(TOKENS * HEADS * VALUE, 2), HR_BFLOAT16, TOKENS, HEADS, VALUE),
      .lse = view(lse, HR_FLOAT32, TOKENS, HEADS, 0),
      .workspace = {.data = zeros(bytes, 1), .bytes = bytes}};
  check(hr_attend(plan, &call));
  printf("log-sum-exp of the last row: %.4f\n", (double)lse[(TOKENS - 1) * HEADS]);
  hr_plan_free(plan);
  return 0;
}
