/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dl_api.h"

/* What bench/peers.py needs beyond attend: the selections it is measured on; the flash-attention kernel alone, which
 * peers without a latent cache are compared with; and top-k MQA between absorbed queries and attended latents, for
 * peers that begin and end there. Not part of the package's interface. */

#ifdef __cplusplus
extern "C" {
#endif

/* generator: "uniform", "drift:0.9", "pooled:4:0.9", "local". */
HR_API HrError* hr_selection_width(const char* generator, int64_t topk, int64_t* width);
/* Fills the rows of a request: index [query_len, width] and count [query_len], int32, in the processor's memory. */
HR_API HrError* hr_fill_selection(const char* generator, int64_t topk, uint64_t seed, int64_t request,
                                  int64_t context_len, HrTensor index, HrTensor count);

/* The flash-attention kernel over the up-projected keys of a batch, all in one pass. Only where the library was built
 * with CUDA. */
typedef struct HrMha HrMha;

typedef struct HrMhaCall {
  HrTensor q;        /* [T, H, nope + rope] bfloat16 */
  HrTensor key_nope; /* [K, H, nope] bfloat16, keys of one request after the other */
  HrTensor key_rope; /* [K, rope] bfloat16, or none */
  HrTensor value;    /* [K, H, v] bfloat16 */
  HrTensor index;    /* [T, width] int32, or none: with it, the bit mask is built first */
  HrTensor count;    /* [T] int32, or none */
  HrTensor out;      /* [T, H, v] bfloat16 or float32 */
  HrTensor lse;      /* [T, H] float32, or none */
  int64_t stream;
} HrMhaCall;

/* masked: calls bring a selection. The tables go to the device now, so that a call only launches. */
HR_API HrError* hr_mha_create(const HrAttention* attention, const HrBatch* batch, const HrDevice* device,
                              int32_t masked, HrMha** mha);
HR_API HrError* hr_mha_run(const HrMha* mha, const HrMhaCall* call);
HR_API void hr_mha_free(HrMha* mha);

/* Union lists, their masks, and the kernel over gathered latents: topk_mqa less its absorption and its projection, all
 * tiles at once. Only where the library was built with CUDA. */
typedef struct HrMqa HrMqa;

typedef struct HrMqaCall {
  HrTensor query;       /* [T, H, R] bfloat16, absorbed, contiguous */
  HrTensor query_rope;  /* [T, H, rope] bfloat16, or none */
  HrTensor cache;       /* [pages, page size, R + rope] bfloat16 */
  HrTensor block_table; /* [B, max pages] int32 */
  HrTensor index;       /* [T, width] int32 */
  HrTensor count;       /* [T] int32, or none */
  HrTensor out;         /* [T, H, R] bfloat16, contiguous */
  int64_t stream;
} HrMqaCall;

HR_API HrError* hr_mqa_create(const HrAttention* attention, const HrBatch* batch, const HrDevice* device, HrMqa** mqa);
HR_API HrError* hr_mqa_run(const HrMqa* mqa, const HrMqaCall* call);
HR_API void hr_mqa_free(HrMqa* mqa);

#ifdef __cplusplus
}
#endif
