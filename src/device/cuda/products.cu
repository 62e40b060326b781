// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt works on column-major matrices. A row-major matrix is its own transpose there, so c = a b is computed as
// c^T = b^T a^T: cuBLASLt's A is our b, its B our a, its m our columns and its n our rows.

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/check.cuh"
#include "device/cuda/memory.h"
#include "device/cuda/plain_product.h"
#include "device/cuda/products.h"
#include "headrace/error.h"

namespace headrace::device::cuda {
namespace {

/// What an algorithm may take: cuBLAS recommends as much for Hopper.
constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;
constexpr std::uint32_t kAlignment = 16;
constexpr int kCandidates = 8;

/// A range of numbers of rows with one algorithm, and the number it is chosen for: the range's largest, for the
/// workspace of a split sum grows with it. The last range has none; 8192 rows fill the device several times over.
struct RowRange {
  std::int64_t last = 0;
  std::int64_t chosen_for = 0;
  std::uint32_t sums = 0;  ///< how partial sums may be joined
};
/// Partial sums are joined in float32 or not at all: another way would round twice. The last range splits no sums.
constexpr std::array<RowRange, 3> kRowRanges = {{
    {128, 128, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
    {1024, 1024, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
    {std::numeric_limits<std::int64_t>::max(), 8192, CUBLASLT_REDUCTION_SCHEME_NONE},
}};
constexpr std::int64_t kMostRows = std::int64_t{1} << 20;  // that algorithms are checked for

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_ALLOC_FAILED) {
    throw OutOfMemoryError(what, "CUBLAS_STATUS_SUCCESS", cublasLtGetStatusString(status));
  }
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw DeviceError(what, "CUBLAS_STATUS_SUCCESS", cublasLtGetStatusString(status));
  }
}

/// A matrix of each batch entry as cuBLASLt sees it: column-major, `ld` elements from a column to the next.
cublasLtMatrixLayoutOpaque_t layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t ld,
                                    std::int64_t batch, std::int64_t batch_stride) {
  cublasLtMatrixLayoutOpaque_t result{};
  check(cublasLtMatrixLayoutInit(&result, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                                 ld),
        "cublasLtMatrixLayoutInit");
  const auto count = static_cast<std::int32_t>(batch);
  check(cublasLtMatrixLayoutSetAttribute(&result, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "batch count");
  check(cublasLtMatrixLayoutSetAttribute(&result, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                                         sizeof batch_stride),
        "batch stride");
  return result;
}

/// The strides of a call's operands, in elements.
struct Strides {
  std::int64_t a_row = 0;
  std::int64_t a_batch = 0;
  std::int64_t b_row = 0;
  std::int64_t b_batch = 0;
  std::int64_t c_row = 0;
  std::int64_t c_batch = 0;
};

Strides contiguous(const ProductShape& shape) {
  return {.a_row = shape.batch * shape.inner,
          .a_batch = shape.inner,
          .b_row = shape.b_transposed ? shape.inner : shape.columns,
          .b_batch = shape.inner * shape.columns,
          .c_row = shape.batch * shape.columns,
          .c_batch = shape.columns};
}

struct Layouts {
  cublasLtMatrixLayoutOpaque_t a;
  cublasLtMatrixLayoutOpaque_t b;
  cublasLtMatrixLayoutOpaque_t c;
};

Layouts layouts(const ProductShape& shape, std::int64_t rows, const Strides& strides) {
  const cudaDataType_t out = shape.out == DType::float32 ? CUDA_R_32F : CUDA_R_16BF;
  return {layout(CUDA_R_16BF, shape.inner, rows, strides.a_row, shape.batch, strides.a_batch),
          layout(CUDA_R_16BF, shape.b_transposed ? shape.inner : shape.columns,
                 shape.b_transposed ? shape.columns : shape.inner, strides.b_row, shape.batch, strides.b_batch),
          layout(out, shape.columns, rows, strides.c_row, shape.batch, strides.c_batch)};
}

/// cuBLASLt's settings for a search.
class Preference {
 public:
  explicit Preference(std::uint32_t sums) {
    check(cublasLtMatmulPreferenceInit(&value_), "cublasLtMatmulPreferenceInit");
    const auto workspace = static_cast<std::uint64_t>(kWorkspaceBytes);
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
  }
  [[nodiscard]] cublasLtMatmulPreference_t get() { return &value_; }

 private:
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    check(cublasLtMatmulPreferenceSetAttribute(&value_, attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  }

  cublasLtMatmulPreferenceOpaque_t value_{};
};

cublasLtMatmulDescOpaque_t describe(const ProductShape& shape) {
  cublasLtMatmulDescOpaque_t result{};
  check(cublasLtMatmulDescInit(&result, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
  const cublasOperation_t operation = shape.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(cublasLtMatmulDescSetAttribute(&result, CUBLASLT_MATMUL_DESC_TRANSA, &operation, sizeof operation),
        "cublasLtMatmulDescSetAttribute");
  return result;
}

std::string to_string(const ProductShape& shape) {
  return "[rows, " + std::to_string(shape.inner) + "] x [" + std::to_string(shape.inner) + ", " +
         std::to_string(shape.columns) + "], " + std::to_string(shape.batch) + " of them";
}

void validate(const ProductShape& shape) {
  const bool well = shape.columns >= 8 && shape.columns % 8 == 0 && shape.inner >= 8 && shape.inner % 8 == 0 &&
                    shape.batch >= 1 && shape.batch <= std::numeric_limits<std::int32_t>::max();
  if (!well) {
    throw UnsupportedError("product", "columns and inner dim that are multiples of 8, and a batch", to_string(shape));
  }
  if (shape.out != DType::bfloat16 && shape.out != DType::float32) {
    throw Error("product", "an output of bfloat16 or float32", std::string(name_of(shape.out)));
  }
}

/// Whether cuBLASLt's algorithms, which were chosen for operands that lie so, can read or write one.
template <class Operand>
bool is_aligned(const Operand& view, std::int64_t element_bytes) {
  return view.stride(2) == 1 && reinterpret_cast<std::uintptr_t>(view.data()) % kAlignment == 0 &&
         view.stride(0) * element_bytes % kAlignment == 0 && view.stride(1) * element_bytes % kAlignment == 0;
}

}  // namespace

struct ProductLibrary::State {
  State() { check(cublasLtCreate(&handle), "cublasLtCreate"); }
  ~State() { cublasLtDestroy(handle); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  cublasLtHandle_t handle = nullptr;
};

ProductLibrary::ProductLibrary() : state_(std::make_unique<State>()) {}

ProductLibrary::~ProductLibrary() = default;

struct Product::State {
  State(const ProductLibrary::State& library, const ProductShape& shape)
      : library(library), shape(shape), description(describe(shape)) {
    std::int64_t first = 1;
    for (std::size_t i = 0; i < kRowRanges.size(); ++i) {
      algorithms[i] = choose(kRowRanges[i], first);
      first = kRowRanges[i].last == std::numeric_limits<std::int64_t>::max() ? first : kRowRanges[i].last + 1;
    }
  }

  /// The heuristic's best algorithm for a range that runs at both its ends.
  cublasLtMatmulAlgo_t choose(const RowRange& range, std::int64_t first) {
    Preference preference(shape.split_sums ? range.sums : std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
    Layouts m = layouts(shape, range.chosen_for, contiguous(shape));
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library.handle, &description, &m.b, &m.a, &m.c, &m.c,
                                                                 preference.get(), kCandidates, found.data(), &count);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
      const auto& candidate = found[static_cast<std::size_t>(i)];
      if (candidate.state != CUBLAS_STATUS_SUCCESS) {
        continue;
      }
      // What split sums take grows with the rows.
      const std::optional<std::int64_t> least = bytes_of(candidate.algo, first);
      const std::optional<std::int64_t> most = bytes_of(candidate.algo, std::min(range.last, kMostRows));
      if (least && most) {
        workspace_bytes = std::max({workspace_bytes, *least, *most});
        return candidate.algo;
      }
    }
    throw UnsupportedError("product", "a shape that cuBLASLt has an algorithm for",
                           to_string(shape) + " (" + cublasLtGetStatusString(status) + ")");
  }

  /// Bytes of workspace that an algorithm takes for so many rows; none where it does not run.
  [[nodiscard]] std::optional<std::int64_t> bytes_of(const cublasLtMatmulAlgo_t& algorithm, std::int64_t rows) {
    Layouts m = layouts(shape, rows, contiguous(shape));
    cublasLtMatmulHeuristicResult_t result{};
    const bool runs = cublasLtMatmulAlgoCheck(library.handle, &description, &m.b, &m.a, &m.c, &m.c, &algorithm,
                                              &result) == CUBLAS_STATUS_SUCCESS;
    const auto bytes = static_cast<std::int64_t>(result.workspaceSize);
    return runs && bytes <= kWorkspaceBytes ? std::optional(bytes) : std::nullopt;
  }

  [[nodiscard]] const cublasLtMatmulAlgo_t& algorithm_for(std::int64_t rows) const {
    std::size_t i = 0;
    while (rows > kRowRanges[i].last) {
      ++i;
    }
    return algorithms[i];
  }

  void run(std::int64_t rows, const Strides& strides, const void* a, const void* b, void* c,
           std::span<std::byte> workspace, Stream stream) {
    Layouts m = layouts(shape, rows, strides);
    constexpr float kOne = 1.0F;
    constexpr float kZero = 0.0F;
    check(cublasLtMatmul(library.handle, &description, &kOne, b, &m.b, a, &m.a, &kZero, c, &m.c, c, &m.c,
                         &algorithm_for(rows), workspace_bytes == 0 ? nullptr : workspace.data(),
                         static_cast<std::size_t>(workspace_bytes), native(stream)),
          "cublasLtMatmul");
  }

  const ProductLibrary::State& library;
  ProductShape shape;
  cublasLtMatmulDescOpaque_t description;  // cuBLASLt takes it as not const, and does not change it
  std::array<cublasLtMatmulAlgo_t, kRowRanges.size()> algorithms{};
  std::int64_t workspace_bytes = 0;
};

Product::Product(const ProductLibrary& library, const ProductShape& shape) {
  validate(shape);
  state_ = std::make_unique<State>(*library.state_, shape);
}

Product::~Product() = default;
Product::Product(Product&&) noexcept = default;

void Product::warm_up(Stream stream) const {
  load_plain_product();
  const ProductShape& shape = state_->shape;
  // The first number of rows of the last range.
  const std::int64_t most = kRowRanges[kRowRanges.size() - 2].last + 1;
  const DeviceArray<std::uint16_t> a(most * shape.batch * shape.inner);
  const DeviceArray<std::uint16_t> b(shape.batch * shape.inner * shape.columns);
  const DeviceBuffer c(most * shape.batch * shape.columns * size_of(shape.out));
  const DeviceBuffer workspace(state_->workspace_bytes);
  a.bytes().fill(std::byte{0});
  b.bytes().fill(std::byte{0});
  std::int64_t rows = 1;
  for (const RowRange& range : kRowRanges) {
    state_->run(rows, contiguous(shape), a.data(), b.data(), c.data(),
                {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())}, stream);
    rows = range.last == std::numeric_limits<std::int64_t>::max() ? rows : range.last + 1;
  }
  synchronize(stream);
}

std::int64_t Product::workspace_bytes() const noexcept { return state_->workspace_bytes; }

void Product::run(View<const bfloat16> a, View<const bfloat16> b, AnyView c, std::span<std::byte> workspace,
                  Stream stream) const {
  const ProductShape& shape = state_->shape;
  const std::int64_t rows = a.rank() == 3 ? a.dim(0) : -1;
  a.expect("product a", {-1, shape.batch, shape.inner});
  if (shape.b_transposed) {
    b.expect("product b", {shape.batch, shape.columns, shape.inner});
  } else {
    b.expect("product b", {shape.batch, shape.inner, shape.columns});
  }
  c.expect("product c", {rows, shape.batch, shape.columns});
  expect_dtype("product c", shape.out, c.dtype());
  if (rows == 0) {
    return;
  }
  if (!is_aligned(a, 2) || !is_aligned(b, 2) || !is_aligned(c, size_of(shape.out))) {
    const int inner = shape.b_transposed ? 2 : 1;
    cuda::run({.rows = rows,
               .columns = shape.columns,
               .inner = shape.inner,
               .batch = shape.batch,
               .a = {a.data(), a.stride(1), a.stride(0), a.stride(2)},
               .b = {b.data(), b.stride(0), b.stride(inner), b.stride(3 - inner)},
               .c = {c.data(), c.stride(1), c.stride(0), c.stride(2)},
               .out = shape.out},
              stream);
    return;
  }
  const Strides strides{.a_row = a.stride(0),
                        .a_batch = a.stride(1),
                        .b_row = b.stride(1),
                        .b_batch = b.stride(0),
                        .c_row = c.stride(0),
                        .c_batch = c.stride(1)};
  if (static_cast<std::int64_t>(workspace.size()) < state_->workspace_bytes) {
    throw Error("product workspace", "at least " + std::to_string(state_->workspace_bytes) + " bytes",
                std::to_string(workspace.size()));
  }
  state_->run(rows, strides, a.data(), b.data(), c.data(), workspace, stream);
}

}  // namespace headrace::device::cuda
