/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h> /* NOLINT(modernize-deprecated-headers): C reads this too */

/* The structures behind a DLPack capsule, as the public specification of DLPack 1.x lays them out in memory. */

#define HR_DLPACK_MAJOR 1

enum { HR_DL_CPU = 1, HR_DL_CUDA = 2, HR_DL_CUDA_HOST = 3 };
enum { HR_DL_INT = 0, HR_DL_UINT = 1, HR_DL_FLOAT = 2, HR_DL_BFLOAT = 4, HR_DL_FLOAT8_E4M3FN = 10 };
enum { HR_DL_READ_ONLY = 1 };

typedef struct HrDlDevice {
  int32_t type;
  int32_t id;
} HrDlDevice;

typedef struct HrDlType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} HrDlType;

typedef struct HrDlTensor {
  void* data;
  HrDlDevice device;
  int32_t rank;
  HrDlType type;
  int64_t* shape;
  int64_t* strides; /* in elements; null: contiguous, row-major */
  uint64_t byte_offset;
} HrDlTensor;

/* What a capsule named "dlpack_exchange_api" points to: functions of the library that owns the tensors. They want
 * Python's lock, and give 0, or else set Python's error. DLPack 1.3. */
typedef struct HrDlExchange {
  uint32_t major;
  uint32_t minor;
  const struct HrDlExchange* older; /* the same of an earlier version; null: none */
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, HrDlTensor* tensor); /* lends; null: not offered */
  int (*work_stream)(int32_t device_type, int32_t ordinal, void** stream);
} HrDlExchange;

/* What a capsule named "dltensor" points to. */
typedef struct HrDlManaged {
  HrDlTensor tensor;
  void* context;
  void (*deleter)(struct HrDlManaged*);
} HrDlManaged;

/* What a capsule named "dltensor_versioned" points to. */
typedef struct HrDlVersioned {
  uint32_t major;
  uint32_t minor;
  void* context;
  void (*deleter)(struct HrDlVersioned*);
  uint64_t flags;
  HrDlTensor tensor;
} HrDlVersioned;
