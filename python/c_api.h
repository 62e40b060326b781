/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h> /* NOLINT(modernize-deprecated-headers): C reads this too */

/* What the Python package calls, in C, so that one library serves every version of Python. Tensors come as the pointers
 * in DLPack capsules; nothing here keeps one beyond the call. A function that can fail returns null, or an error that
 * the caller frees. Texts end with a zero byte and are UTF-8. What the arguments mean is said in headrace/plan.h,
 * headrace/attention.h and headrace/cuda.h. */

#define HR_API __attribute__((visibility("default")))
/* Changes with every change of this file. */
#define HR_ABI 5

#ifdef __cplusplus
extern "C" {
#endif

struct HrDlTensor;
typedef struct HrError HrError;
typedef struct HrDevice HrDevice;
typedef struct HrPlan HrPlan;

/* What a tensor's pointer is: that of a capsule "dltensor" or "dltensor_versioned", or to a bare HrDlTensor (dlpack.h).
 */
enum { HR_CAPSULE = 0, HR_VERSIONED_CAPSULE = 1, HR_BARE = 2 };

/* A tensor; null where there is none. */
typedef struct HrTensor {
  const void* pointer;
  int32_t form;
} HrTensor;

typedef struct HrAttention {
  int64_t num_heads;
  int64_t kv_lora_rank;
  int64_t qk_nope_head_dim;
  int64_t qk_rope_head_dim;
  int64_t v_head_dim;
  double scale;
  const char* rule;         /* "none", "lightning(2048)", "kpool(2048, 4, tail)", "opaque", "opaque(2048)" */
  const char* compute;      /* "float32", "bfloat16" */
  const char* cache_format; /* "float32", "bf16", "fp8", "fp8_ds_mla" */
  const char* space;        /* "request_position", "cache_slot" */
} HrAttention;

typedef struct HrBatch {
  int64_t requests;
  const int32_t* query_len;
  const int32_t* seq_len;
  int32_t exact; /* else the lengths are upper bounds */
} HrBatch;

typedef struct HrLimits {
  const HrDevice* device;  /* null: the processor */
  int32_t threads;         /* of the processor; 0: all */
  int64_t workspace_bytes; /* negative: no limit */
  int64_t max_tokens;      /* 0: not stated */
  int64_t max_seq_len;     /* 0: not stated */
  int64_t max_requests;    /* 0: not stated */
} HrLimits;

typedef struct HrRequestPlan {
  int64_t query_len;
  int64_t context_len;
  const char* path;
  double predicted_ms;
  int32_t skip_scoring;
  int64_t scoring_begin;
} HrRequestPlan;

typedef struct HrCall {
  HrTensor q;           /* [T, H, nope + rope] */
  HrTensor kv_b_proj;   /* [H * (nope + v), R] */
  HrTensor sink;        /* [H] float32, or none */
  HrTensor cache;       /* [pages, page size, row] in the format's element type, or in bytes (uint8) */
  HrTensor block_table; /* [B, max pages] int32 */
  HrTensor query_start; /* [B + 1] int32 */
  HrTensor seq_len;     /* [B] int32 */
  HrTensor index;       /* [T, width] int32, or none */
  HrTensor count;       /* [T] int32, or none */
  HrTensor out;         /* [T, H, v] */
  HrTensor lse;         /* [T, H] float32, or none */
  HrTensor workspace;   /* [n] uint8 */
  float cache_scale;
  int64_t stream;         /* a cudaStream_t; not read for a plan of the processor */
  int32_t selection_kept; /* 1: another layer with the selection of the call before */
} HrCall;

HR_API int32_t hr_abi(void);
HR_API const char* hr_version(void);

HR_API const char* hr_error_argument(const HrError* error);
HR_API const char* hr_error_expected(const HrError* error);
HR_API const char* hr_error_actual(const HrError* error);
HR_API void hr_error_free(HrError* error);

/* Describes Python's tensors without capsules, by DLPack's C exchange interface: `exchange` is what their type's
 * __dlpack_c_exchange_api__ holds, a null object is no tensor. tensors[i] then points to lent[i]; both are good while
 * the objects live and keep their shape. The caller holds Python's lock. Gives -1, or the number of the object that the
 * interface refused, with Python's error set. */
HR_API int32_t hr_lend(const void* exchange, void* const* objects, int32_t count, struct HrDlTensor* lent,
                       HrTensor* tensors);
/* The stream in which the owner of the exchange interface works on a CUDA device. The caller holds Python's lock. Gives
 * 0, or another number with Python's error set. */
HR_API int32_t hr_work_stream(const void* exchange, int32_t ordinal, int64_t* stream);
/* Whether hr_lend and hr_work_stream know this exchange interface. */
HR_API int32_t hr_knows_exchange(const void* exchange);

HR_API int32_t hr_device_count(void);
HR_API HrError* hr_device_create(int32_t ordinal, HrDevice** device);
HR_API const char* hr_device_name(const HrDevice* device);
/* Why the kernels cannot run on it; empty when they can. */
HR_API const char* hr_device_unmet(const HrDevice* device);
HR_API HrError* hr_device_warm_up(HrDevice* device, const HrAttention* attention);
HR_API void hr_device_free(HrDevice* device);

HR_API HrError* hr_workspace_bound(const HrAttention* attention, const HrLimits* limits, int64_t* bytes);
HR_API HrError* hr_table_bound(const HrAttention* attention, const HrLimits* limits, int64_t* bytes);

/* force: the name of a path, or null. */
HR_API HrError* hr_plan_create(const HrAttention* attention, const HrBatch* batch, const HrLimits* limits,
                               const char* force, HrPlan** plan);
HR_API HrError* hr_plan_remake(HrPlan* plan, const HrBatch* batch);
HR_API HrError* hr_plan_refresh(HrPlan* plan, const HrBatch* batch);
/* tables: [n] uint8 on the plan's GPU; stream: a cudaStream_t. */
HR_API HrError* hr_plan_upload(HrPlan* plan, const HrTensor* tables, int64_t stream);
HR_API int64_t hr_plan_table_bytes(const HrPlan* plan);
HR_API int64_t hr_plan_workspace_bytes(const HrPlan* plan);
HR_API HrError* hr_plan_kept_bytes(const HrPlan* plan, const char* path, int64_t* bytes);
HR_API int64_t hr_plan_requests(const HrPlan* plan);
HR_API HrError* hr_plan_request(const HrPlan* plan, int64_t request, HrRequestPlan* result);
/* A text lives as long as the plan and until the next call of one of these. */
HR_API HrError* hr_plan_reason(HrPlan* plan, int64_t request, const char** text);
HR_API HrError* hr_plan_explain(HrPlan* plan, const char** text);
HR_API void hr_plan_free(HrPlan* plan);

HR_API HrError* hr_attend(const HrPlan* plan, const HrCall* call);

#ifdef __cplusplus
}
#endif
