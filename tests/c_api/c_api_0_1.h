/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The C interface: what other languages bind to. C99, no C++ type. docs/c-interface.md has a complete example, and says
 * what may change from version to version; docs/contract.md says what is computed.
 *
 * Errors. A function that can fail returns null when it went well, else an error that the caller frees. No exception
 * leaves a function. Handles, texts and numbers are given back only when it went well. Views are written only after all
 * that can be checked was; where memory runs out or a device fails later, they hold anything. Arguments are not null
 * but where that is said.
 *
 * Structures. One that the caller fills begins with `size`, which the caller sets to sizeof of it. The library reads no
 * more than that: a field that lies beyond it has the value 0, which always means what it meant before the field
 * existed. A structure may be longer than the library knows, if what lies beyond is zero. So a structure is
 * zero-initialised first:
 *     HrLimits limits = {.size = sizeof limits};
 * Structures without `size` (HrView, HrMemory, HrCache, HrRequests) never change. Arrays of
 * structures come with a stride, the bytes from one element to the next.
 *
 * Memory. The caller owns all of it but the handles (HrError, HrDevice, HrPlan). Nothing that a pointer leads to is
 * kept beyond the call, but for a plan's tables and, on a GPU, until queued work is done. Texts end with a zero byte
 * and are UTF-8; each function says how long they live.
 *
 * Threads. All functions may be called from several threads at once. A handle that comes as a pointer to const may be
 * used by several calls at once; one that does not, by no other call.
 *
 * Numbers that name a choice are int32_t. 0 is none of them where a choice has to be made. Sizes and strides of views
 * are in elements, all others in bytes. */

#include <stddef.h> /* NOLINT(modernize-deprecated-headers): C reads this too */
#include <stdint.h> /* NOLINT(modernize-deprecated-headers) */

#if defined(__GNUC__)
#define HR_API __attribute__((visibility("default")))
#else
#define HR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): C reads this too */

typedef struct HrError HrError;
typedef struct HrDevice HrDevice;
typedef struct HrPlan HrPlan;

/* ---- Numbers that name a choice ---- */

/* What a caller can do about an error. A later version may have more kinds. */
enum {
  HR_MISUSE = 1,         /* an argument or a field is wrong: another one is needed */
  HR_UNSUPPORTED = 2,    /* well formed, but not with this library, device or path: another one may serve */
  HR_OUT_OF_MEMORY = 3,  /* of the host or of a GPU: less at once, or later, may work */
  HR_DEVICE_FAILURE = 4, /* CUDA or a library of it reported a failure; it may be of work that was queued before */
  HR_INTERNAL = 5        /* none of these: a fault of the library */
};

/* Types of elements. */
enum {
  HR_FLOAT32 = 1,
  HR_BFLOAT16 = 2,
  HR_FLOAT16 = 3,
  HR_FLOAT8_E4M3 = 4,
  HR_FLOAT8_E8M0 = 5,
  HR_INT32 = 6,
  HR_INT64 = 7,
  HR_UINT8 = 8
};

/* How a cache stores a token (docs/cache-formats.md). */
enum { HR_CACHE_FLOAT32 = 1, HR_CACHE_BFLOAT16 = 2, HR_CACHE_FP8 = 3, HR_CACHE_FP8_DS_MLA = 4 };

/* What is known of selections without reading them. */
enum {
  HR_RULE_NONE = 1,      /* no selection: every row attends to every causal key */
  HR_RULE_LIGHTNING = 2, /* the `topk` keys of highest score */
  HR_RULE_KPOOL = 3,     /* the topk / pool complete pools of highest score, and with `tail` the incomplete last one */
  HR_RULE_OPAQUE = 4     /* nothing; `topk` is the number of columns, 0 where that is not known */
};

/* How a selection names keys. */
enum { HR_REQUEST_POSITION = 1, HR_CACHE_SLOT = 2 };

/* The exact algorithms. */
enum { HR_DENSE_MHA = 1, HR_MASKED_MHA = 2, HR_TOPK_MQA = 3 };

/* ---- Parts of structures ---- */

/* A strided window on memory of the caller. All zero: no view, where one may be left out. */
typedef struct HrView {
  void* data;        /* at a multiple of the element's size; may be null where a size is 0. Inputs are only read */
  int32_t dtype;     /* HR_FLOAT32, ... */
  int32_t rank;      /* dimensions, 1 to 4 */
  int64_t shape[4];  /* the first `rank` count */
  int64_t stride[4]; /* in elements */
} HrView;

/* Contiguous bytes. */
typedef struct HrMemory {
  void* data;
  int64_t bytes;
} HrMemory;

/* A paged cache. Token `slot` lies at data + (slot / page_size) * page_stride + (slot % page_size) * row_stride. */
typedef struct HrCache {
  void* data;
  int64_t num_pages;
  int64_t page_size;   /* tokens a page, at least 1 */
  int64_t page_stride; /* bytes from a page to the next */
  int64_t row_stride;  /* bytes from a token to the next */
  int64_t row_bytes;   /* bytes of a row that are its own; 0: the least that the format needs (hr_cache_row_bytes) */
  float scale;         /* of HR_CACHE_FP8, value = e4m3 * scale: finite and > 0; not read for other formats */
} HrCache;

/* The requests of a step with their exact lengths, B of them, and where their keys lie. */
typedef struct HrRequests {
  HrView query_start; /* [B + 1] int32: tokens [query_start[b], query_start[b + 1]) belong to request b */
  HrView seq_len;     /* [B] int32: keys of request b, this step's included; its rows are at the last positions */
  HrView block_table; /* [B, max pages] int32: the page of keys [i * page_size, (i + 1) * page_size) */
} HrRequests;

/* ---- Structures that the caller fills ---- */

/* What does not change from step to step: one rank's layer, the selections it gets and the cache it reads. */
typedef struct HrAttention {
  size_t size;
  int64_t num_heads;        /* of this rank */
  int64_t kv_lora_rank;     /* R: latent values a token */
  int64_t qk_nope_head_dim; /* query and key dims without position */
  int64_t qk_rope_head_dim; /* those with rope, even; 0: none */
  int64_t v_head_dim;       /* value dims */
  double scale;             /* of the softmax: a normal float32 above 0 and at most 1e6 */
  int64_t topk;             /* of the rule: see there; 0 for HR_RULE_NONE */
  int64_t pool;             /* of HR_RULE_KPOOL, divides topk; else 0 */
  int32_t tail;             /* of HR_RULE_KPOOL, 0 or 1; else 0 */
  int32_t rule;             /* HR_RULE_NONE, ... */
  int32_t compute;          /* HR_FLOAT32 or HR_BFLOAT16; a GPU computes in the latter */
  int32_t format;           /* HR_CACHE_FLOAT32, ... */
  int32_t space;            /* HR_REQUEST_POSITION or HR_CACHE_SLOT, of the selections */
  int32_t reserved;         /* 0 */
} HrAttention;

/* The requests of one step, as the host knows them. */
typedef struct HrBatch {
  size_t size;
  int64_t requests;
  const int32_t* query_len;     /* [requests] new tokens, or upper bounds; may be null where there are no requests */
  const int32_t* seq_len_bound; /* [requests] keys in all, or upper bounds, at least query_len; likewise */
  int32_t exact;                /* 1: the lengths are exact, and no others are accepted; 0: upper bounds */
  int32_t reserved;             /* 0 */
} HrBatch;

/* What plans stay within. */
typedef struct HrLimits {
  size_t size;
  const HrDevice* device;  /* null: the processor. A plan keeps what it needs of it: the handle may be freed */
  int64_t workspace_bytes; /* 0: the library's choice, which hr_workspace_bound tells */
  int64_t max_tokens;      /* query tokens of any batch; 0: not stated */
  int64_t max_seq_len;     /* keys of any request; 0: not stated */
  int64_t max_requests;    /* of any batch, those without query tokens included; 0: not stated */
  int64_t threads;         /* of the processor, at most 1024; 0: all */
} HrLimits;

typedef struct HrHints {
  size_t size;
  int32_t force; /* this path for every row (HR_DENSE_MHA, ...), or an error of kind HR_UNSUPPORTED; 0: the fastest */
  int32_t reserved; /* 0 */
} HrHints;

/* What a plan says about one request: an element of the array that hr_plan_requests fills. */
typedef struct HrRequestPlan {
  int64_t query_len;
  int64_t context_len;
  int64_t scoring_begin; /* rows at positions below it do not read the selection */
  double predicted_ms;
  int32_t path;         /* of the last row: HR_DENSE_MHA, ... */
  int32_t skip_scoring; /* 1: no row reads the selection */
} HrRequestPlan;

/* One layer's attention. Everything lies in memory of the plan's device. The last dimension of views is contiguous,
 * other strides are free (on a GPU within what hr_attend says). */
typedef struct HrAttendCall {
  size_t size;
  HrView q;               /* [T, H, nope + rope] compute dtype, rope applied */
  HrView kv_b_proj;       /* [H * (nope + v), R] compute dtype; of each head first its W_UK rows, then its W_UV rows */
  HrView sink;            /* [H] float32, or none */
  HrCache cache;          /* read; this step's tokens are in it already */
  HrRequests requests;    /* within the bounds of the plan */
  HrView index;           /* [T, width] int32: the selection; none where every row is covered */
  HrView count;           /* [T] int32, or none: columns from count on are not read */
  HrView out;             /* written: [T, H, v] compute dtype or float32 */
  HrView lse;             /* written: [T, H] float32, or none: natural log of the sum of exp(scale * q.k) */
  HrMemory workspace;     /* at least hr_plan_workspace_bytes, at a multiple of 64 bytes, on a GPU of 256 */
  void* stream;           /* on a GPU: a cudaStream_t; null: the default stream. Not read for the processor */
  int32_t selection_kept; /* 1: another layer with the selection, lengths, block table, page size and workspace of the
                           * call before with this plan on this stream, and nothing else wrote to the workspace since */
  int32_t reserved;       /* 0 */
} HrAttendCall;

/* Where the structures below have a `device`, null is the processor. Else everything that their views, caches and
 * workspaces point to is in that GPU's memory; the call queues work on `stream`, a cudaStream_t of it (null: the
 * default stream), and returns: it allocates nothing, waits for nothing, and can be captured in a CUDA graph. Slots,
 * lengths and pages are then read when the work runs, and what they hold is not checked but ignored where it is out of
 * range. */

/* New tokens for a cache. */
typedef struct HrAppendCall {
  size_t size;
  HrCache cache;          /* written */
  HrView latent;          /* [T, R] float32 or bfloat16, normalised */
  HrView rope_key;        /* [T, rope] of the same dtype, rope applied; none where the rope dim is 0 */
  HrView slot_mapping;    /* [T] int64: the slot of each token; -1 skips it. No two tokens name one slot */
  const HrDevice* device; /* null: the processor */
  void* stream;           /* of the GPU */
  int64_t threads;        /* of the processor, at most 1024; 0: all */
} HrAppendCall;

/* The dimensions of an indexer: lightning, or k-pool. */
typedef struct HrIndexer {
  size_t size;
  int64_t num_heads;
  int64_t head_dim; /* D */
  int64_t topk;     /* in keys */
  int64_t pool;     /* 0: a lightning indexer; else k-pool, whose keys are scored by pools of so many */
  int32_t tail;     /* 1: k-pool takes the incomplete pool at the end too */
  int32_t compute;  /* HR_FLOAT32 or HR_BFLOAT16; a GPU computes in the latter */
} HrIndexer;

/* New tokens for the indexer's own cache. A row of it holds, in the compute dtype, a key [D], and for k-pool a gate [D]
 * behind it. */
typedef struct HrAppendIndexKeysCall {
  size_t size;
  HrCache cache;          /* written */
  HrView key;             /* [T, D] compute dtype, LayerNorm and rope applied */
  HrView gate;            /* [T, D] compute dtype, for k-pool only */
  HrView offset_bias;     /* [pool, D] float32, for k-pool only: the learned bias of each offset in the pool */
  HrRequests requests;    /* with the pages of this cache */
  HrView slot_mapping;    /* [T] int64: the slot of each token; -1 skips it. No two tokens name one slot */
  const HrDevice* device; /* null: the processor */
  void* stream;           /* of the GPU */
  int64_t threads;        /* of the processor, at most 1024; 0: all */
} HrAppendIndexKeysCall;

/* The score of key j for query t is the sum over heads h of head_weight[t, h] * max(0, query[t, h] . key[j]). */
typedef struct HrSelectCall {
  size_t size;
  HrCache cache;        /* the indexer's; read */
  HrView query;         /* [T, heads, D] compute dtype, rope applied */
  HrView head_weight;   /* [T, heads] float32, the constant factors 1/sqrt(D) and 1/sqrt(heads) included */
  HrRequests requests;  /* with the pages of this cache */
  HrView scoring_begin; /* [B] int64, HrRequestPlan.scoring_begin: rows at positions below it get count 0; none: every
                         * row is made */
  HrView index;         /* written: [T, at least hr_select_width] int32: ascending positions, then -1 */
  HrView count;         /* written: [T] int32 */
  HrMemory workspace;   /* of a GPU: for scores, at a multiple of 16 bytes (hr_cuda_select_workspace). For the processor
                         * `bytes` is what it may take (hr_select_workspace_minimum), and `data` is not read */
  int64_t longest_seq_len; /* of a GPU: a bound on the requests' seq_len. Not read for the processor */
  int64_t rows_begin;      /* with some_rows: only tokens [rows_begin, rows_end) are made, the others not written */
  int64_t rows_end;
  int64_t some_rows;      /* 0: all tokens */
  const HrDevice* device; /* null: the processor */
  void* stream;           /* of the GPU */
  int64_t threads;        /* of the processor, at most 1024; 0: all */
} HrSelectCall;

/* The scores of one query token, in memory of the processor. */
typedef struct HrScoreRowCall {
  size_t size;
  HrCache cache;       /* the indexer's; read */
  HrView query;        /* as in HrSelectCall */
  HrView head_weight;  /* as in HrSelectCall */
  HrRequests requests; /* with the pages of this cache */
  int64_t request;     /* the number of the request */
  int64_t token;       /* the number among the step's T tokens */
  HrView scores;       /* written: [at least as many as the row sees] float32 */
} HrScoreRowCall;

/* The scores of a step. */
typedef struct HrScoreRowsCall {
  size_t size;
  HrCache cache;       /* the indexer's; read */
  HrView query;        /* as in HrSelectCall */
  HrView head_weight;  /* as in HrSelectCall */
  HrRequests requests; /* with the pages of this cache */
  HrView scores;       /* written: [T, at least as many as a row sees, on a GPU as longest_seq_len keys hold] float32 */
  int64_t longest_seq_len; /* as in HrSelectCall */
  int64_t rows_begin;      /* as in HrSelectCall */
  int64_t rows_end;
  int64_t some_rows;
  const HrDevice* device; /* null: the processor */
  void* stream;           /* of the GPU */
} HrScoreRowsCall;

/* ---- The library ---- */

/* "MAJOR.MINOR.PATCH" of the library that runs; lives as long as it. */
HR_API const char* hr_version(void);

/* ---- Errors ---- */

/* HR_MISUSE, ... */
HR_API int32_t hr_error_kind(const HrError* error);
/* What was wrong, what was expected and what came, and all three as a sentence. They live as long as the error. A field
 * is named as it is here, with a word before it where the name alone would not tell: "limits.threads",
 * "selection.index". */
HR_API const char* hr_error_argument(const HrError* error);
HR_API const char* hr_error_expected(const HrError* error);
HR_API const char* hr_error_actual(const HrError* error);
HR_API const char* hr_error_message(const HrError* error);
/* May be null. */
HR_API void hr_error_free(HrError* error);

/* ---- GPUs ---- */

/* GPUs that can be used; 0 where there is none, no driver, or the library was built without CUDA. */
HR_API int32_t hr_device_count(void);
/* A GPU, and what the library keeps for it. The caller frees it. The calling thread's current device is the same after
 * every function as before it. */
HR_API HrError* hr_device_create(int32_t ordinal, HrDevice** device);
/* Its name, and why the kernels cannot run on it, empty when they can. Both live as long as the device. */
HR_API const char* hr_device_name(const HrDevice* device);
HR_API const char* hr_device_unmet(const HrDevice* device);
/* Chooses and loads what calls of an attention, of the cache and of an indexer may take, and waits. Without it the
 * first plan of a geometry does so. Afterwards no function allocates memory of the GPU or waits for it. */
HR_API HrError* hr_device_warm_up(const HrDevice* device, const HrAttention* attention);
/* May be null. */
HR_API void hr_device_free(HrDevice* device);

/* ---- Plans ---- */

/* Bytes of workspace, and of tables, that are enough for the plan of every batch within max_tokens and max_seq_len of
 * the limits, which must be stated, and max_requests (0: max_tokens). */
HR_API HrError* hr_workspace_bound(const HrAttention* attention, const HrLimits* limits, int64_t* bytes);
HR_API HrError* hr_table_bound(const HrAttention* attention, const HrLimits* limits, int64_t* bytes);

/* Chooses for every request the exact path of least predicted time. One plan serves all layers of a step that have the
 * same attention. The caller frees it.
 * limits, hints: may be null */
HR_API HrError* hr_plan_create(const HrAttention* attention, const HrBatch* batch, const HrLimits* limits,
                               const HrHints* hints, HrPlan** plan);
/* Makes it anew for another batch, in the memory that it has: what hr_plan_create would make of that batch. For a GPU
 * its tables are then uploaded anew. On an error it stays as it was; after HR_OUT_OF_MEMORY it has to be made anew
 * first. */
HR_API HrError* hr_plan_remake(HrPlan* plan, const HrBatch* batch);
/* Makes it the plan of a later batch with as many requests, none longer than it was made for: paths, workspace and
 * tables stay. On an error it stays as it was. */
HR_API HrError* hr_plan_refresh(HrPlan* plan, const HrBatch* batch);
/* Queues the writing of the plan's tables, without which hr_attend on a GPU refuses it. Nothing on the host is read
 * after the call. The plan reads that memory until its tables are uploaded elsewhere.
 * tables: at least hr_plan_table_bytes of the GPU's memory, at a multiple of 16 bytes
 * stream: a cudaStream_t; null: the default stream. hr_attend is queued behind it */
HR_API HrError* hr_plan_upload(HrPlan* plan, const HrMemory* tables, void* stream);
/* 0 for the processor. */
HR_API int64_t hr_plan_table_bytes(const HrPlan* plan);
HR_API int64_t hr_plan_workspace_bytes(const HrPlan* plan);
/* Bytes of the workspace in which what a path makes of a selection outlasts a call, for another layer with the same
 * selection (selection_kept); 0 where it is made again. */
HR_API HrError* hr_plan_kept_bytes(const HrPlan* plan, int32_t path, int64_t* bytes);
HR_API int64_t hr_plan_request_count(const HrPlan* plan);
/* What the plan says about requests [begin, begin + count).
 * stride: bytes from one element to the next, sizeof(HrRequestPlan) of the caller's header. What the library knows no
 *         value for is zero */
HR_API HrError* hr_plan_requests(const HrPlan* plan, int64_t begin, int64_t count, HrRequestPlan* requests,
                                 size_t stride);
/* Why a request takes its path, and the whole decision, as text. It lives as long as the plan, and until the next call
 * of one of these two. */
HR_API HrError* hr_plan_reason(HrPlan* plan, int64_t request, const char** text);
HR_API HrError* hr_plan_explain(HrPlan* plan, const char** text);
/* May be null. Work that a GPU was given does not need the plan any more. */
HR_API void hr_plan_free(HrPlan* plan);

/* ---- Calls ---- */

/* Runs a plan: for each query token, softmax attention over its selected causal keys. A row that attends to nothing
 * gives 0 and a log-sum-exp of -inf. Nothing outside `out`, `lse` and `workspace` is written; the memory of `out` and
 * of `lse` is that of no other view. For the processor: lengths and pages are checked before anything is written. For a
 * GPU: queues work on the stream and returns; allocates nothing, waits for nothing, and can be captured in a CUDA
 * graph. Lengths, pages and entries are read when the work runs, and what lies outside the plan's bounds, the cache or
 * a request is ignored. Addresses and strides of q, out, kv_b_proj and the cache that are multiples of 16 bytes are
 * fast. HR_TOPK_MQA serves others too, slowly; HR_DENSE_MHA and HR_MASKED_MHA do so for kv_b_proj and the cache, and
 * refuse other q and out, and query_start and seq_len that are not contiguous, with HR_UNSUPPORTED. sink is contiguous.
 */
HR_API HrError* hr_attend(const HrPlan* plan, const HrAttendCall* call);

/* The least bytes of a row of a cache. */
HR_API HrError* hr_cache_row_bytes(const HrAttention* attention, int64_t* bytes);
/* Writes new tokens' latents and rope keys to a cache, in its format. On the processor nothing is written where a slot
 * is outside [-1, num_pages * page_size); on a GPU such a token is skipped. */
HR_API HrError* hr_append(const HrAttention* attention, const HrAppendCall* call);

/* The bytes of a row of an indexer's cache, and the columns of its selections. */
HR_API HrError* hr_index_row_bytes(const HrIndexer* indexer, int64_t* bytes);
HR_API HrError* hr_select_width(const HrIndexer* indexer, int64_t* columns);
/* Writes new tokens' keys, and for k-pool gates and pooled keys, to an indexer's cache. It is never left out, also
 * where scoring is. On the processor nothing is written where a slot or a page is outside the cache; on a GPU such a
 * token is skipped. */
HR_API HrError* hr_append_index_keys(const HrIndexer* indexer, const HrAppendIndexKeysCall* call);
/* The least workspace with which the processor selects for requests of up to so many keys. */
HR_API HrError* hr_select_workspace_minimum(const HrIndexer* indexer, int64_t longest_seq_len, int64_t* bytes);
/* For a GPU, for steps of up to so many query tokens whose requests have up to so many keys.
 * least: bytes of workspace that hr_select needs
 * useful: bytes above which more brings nothing */
HR_API HrError* hr_cuda_select_workspace(const HrIndexer* indexer, int64_t tokens, int64_t longest_seq_len,
                                         int64_t* least, int64_t* useful);
/* Scores and selects. A row's result depends on its own query and keys alone: not on the workspace, the threads, the
 * range of rows, or how a prompt was cut into chunks. Equal scores: the lower position wins. NaN ranks below all
 * others. */
HR_API HrError* hr_select(const HrIndexer* indexer, const HrSelectCall* call);
/* The scores of one query token, those that hr_select ranks: of every key that the row sees, for k-pool of every
 * complete pool. count: how many there are */
HR_API HrError* hr_score_row(const HrIndexer* indexer, const HrScoreRowCall* call, int64_t* count);
/* The same of a step: row t holds those of token t, and the rest of it is not written. */
HR_API HrError* hr_score_rows(const HrIndexer* indexer, const HrScoreRowsCall* call);

/* NOLINTEND(modernize-use-using) */

#ifdef __cplusplus
}
#endif
