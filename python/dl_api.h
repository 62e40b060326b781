/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "headrace/c_api.h"

/* What the Python package calls beside the library's C interface: tensors of DLPack, as the pointers in its capsules or
 * as what its exchange interface lends. Nothing here keeps one beyond the call. Made for one version of the package,
 * and so without sizes: HR_DL_ABI changes with every change of this file and of bench_api.h. */

#define HR_DL_ABI 2

#ifdef __cplusplus
extern "C" {
#endif

struct HrDlTensor;

/* What a tensor's pointer is: that of a capsule "dltensor" or "dltensor_versioned", or to a bare HrDlTensor (dlpack.h).
 */
enum { HR_CAPSULE = 0, HR_VERSIONED_CAPSULE = 1, HR_BARE = 2 };

/* A tensor; null where there is none. */
typedef struct HrTensor {
  const void* pointer;
  int32_t form;
} HrTensor;

/* HrAttendCall with tensors. */
typedef struct HrDlCall {
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
} HrDlCall;

HR_API int32_t hr_dl_abi(void);

/* Describes Python's tensors without capsules, by DLPack's C exchange interface: `exchange` is what their type's
 * __dlpack_c_exchange_api__ holds, a null object is no tensor. tensors[i] then points to lent[i]; both are good while
 * the objects live and keep their shape. The caller holds Python's lock. Gives -1, or the number of the object that the
 * interface refused, with Python's error set. */
HR_API int32_t hr_dl_lend(const void* exchange, void* const* objects, int32_t count, struct HrDlTensor* lent,
                          HrTensor* tensors);
/* The stream in which the owner of the exchange interface works on a CUDA device. The caller holds Python's lock. Gives
 * 0, or another number with Python's error set. */
HR_API int32_t hr_dl_work_stream(const void* exchange, int32_t ordinal, int64_t* stream);
/* Whether hr_dl_lend and hr_dl_work_stream know this exchange interface. */
HR_API int32_t hr_dl_knows_exchange(const void* exchange);

/* hr_plan_upload. tables: [n] uint8 on the plan's GPU; stream: a cudaStream_t. */
HR_API HrError* hr_dl_upload(HrPlan* plan, const HrTensor* tables, int64_t stream);
/* hr_attend. Every tensor is checked to be in memory of the plan's device, and outputs to be writable. */
HR_API HrError* hr_dl_attend(const HrPlan* plan, const HrDlCall* call);
/* The same in one step with hr_dl_lend and hr_dl_work_stream, for tensors that all have one exchange interface.
 * objects: the twelve of HrDlCall in its order, null where there is none. own_stream: 1: the stream in which the owner
 * of the interface works, in place of `stream`. The caller holds Python's lock, which is let go while work is queued.
 * Gives null with Python's error set where the owner set it. */
HR_API HrError* hr_dl_attend_objects(const HrPlan* plan, const void* exchange, void* const* objects, float cache_scale,
                                     int32_t own_stream, int64_t stream, int32_t selection_kept);

#ifdef __cplusplus
}
#endif
