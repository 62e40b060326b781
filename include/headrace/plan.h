// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/cache.h"
#include "headrace/export.h"
#include "headrace/geometry.h"
#include "headrace/profile.h"
#include "headrace/selection.h"

namespace headrace {

/// The exact algorithms.
enum class Path : std::uint8_t {
  dense_mha,   ///< up-project the keys, plain causal flash attention; needs a selection that covers every row
  masked_mha,  ///< the same under a bit mask made from the selection
  topk_mqa,    ///< absorb the up-projection into the query and attend to the selected latents
};
inline constexpr Path kPaths[] = {Path::dense_mha, Path::masked_mha, Path::topk_mqa};

[[nodiscard]] HEADRACE_EXPORT std::string_view name_of(Path path) noexcept;
/// @throws Error with the list of names for an unknown one
[[nodiscard]] HEADRACE_EXPORT Path path_from_name(std::string_view name);

/// Everything about an attention layer that does not change from step to step.
struct HEADRACE_EXPORT Attention {
  Geometry geometry;
  SelectionRule rule;
  double scale = 0.0;  ///< of the softmax: a normal float32 above 0 and at most 1e6
  DType compute = DType::bfloat16;
  CacheFormat format = CacheFormat::bfloat16;
  SelectionSpace space = SelectionSpace::request_position;  ///< of the selections that `attend` will get

  /// @throws Error when a field is out of range or the format cannot hold the geometry
  void validate() const;
};

/// The requests of one step, as the host knows them. Both spans have one entry a request.
struct Batch {
  std::span<const std::int32_t> query_len;      ///< new tokens (or an upper bound), >= 0
  std::span<const std::int32_t> seq_len_bound;  ///< keys in all, or an upper bound, >= query_len
  /// The lengths are exact. Only then can the k-pool rule without a tail cover a row: it depends on the very length.
  bool exact = false;
};

class CudaDevice;  // headrace/cuda.h

/// The device a plan is made for: this machine's processor, or a GPU.
struct Device {
  int threads = 0;                             ///< of the processor, at most kMaxThreads; 0: as many as the machine has
  std::shared_ptr<CudaDevice> cuda = nullptr;  ///< the GPU, whose paths compute in bfloat16; null: the processor
};

struct Stream;  // headrace/cuda.h

namespace attention {
struct DevicePasses;
}

/// What a plan has to stay within.
struct Limits {
  std::int64_t workspace_bytes = std::numeric_limits<std::int64_t>::max();
  Device device;
  std::int64_t max_tokens = 0;    ///< query tokens of any batch; 0: not stated
  std::int64_t max_seq_len = 0;   ///< keys of any request; 0: not stated
  std::int64_t max_requests = 0;  ///< of any batch, those without query tokens included; 0: not stated
};

struct Hints {
  std::optional<Path> force;       ///< this path for every row, or an Error with the reasons against it
  std::optional<Profile> profile;  ///< absent: Profile::nominal_cpu, or nominal_cuda
};

/// Rows at positions [begin, end) of one request, on one path.
struct Segment {
  std::int64_t request = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  Path path = Path::topk_mqa;
};

/// The segments of one request, in order of position: at most two, and none where it has no query tokens.
class Segments {
 public:
  [[nodiscard]] const Segment* begin() const noexcept { return of_.data(); }
  [[nodiscard]] const Segment* end() const noexcept { return of_.data() + size_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] const Segment& operator[](std::size_t i) const noexcept { return of_[i]; }
  [[nodiscard]] const Segment& back() const noexcept { return of_[size_ - 1]; }
  /// A third one has no room.
  void push_back(const Segment& segment) noexcept { of_[size_++] = segment; }

 private:
  std::array<Segment, 2> of_{};
  std::size_t size_ = 0;
};

/// What the plan says about one request. Plan::reason and Plan::alternatives say why.
struct RequestPlan {
  std::int64_t request = 0;
  std::int64_t query_len = 0;
  std::int64_t context_len = 0;
  Path path = Path::topk_mqa;  ///< of the last row; `segments` has the whole story
  double predicted_ms = 0.0;
  bool skip_scoring = false;       ///< no row reads the selection: the caller may leave scoring out for this request
  std::int64_t scoring_begin = 0;  ///< rows at positions below it do not read the selection
  Segments segments;
};

/// A path that was not taken: its predicted time for the whole request, or the reasons it cannot run.
struct Alternative {
  Path path = Path::topk_mqa;
  double predicted_ms = 0.0;  ///< meaningless when `unmet` is not empty
  std::vector<std::string> unmet;
};

/// How a path's work is cut to fit the workspace.
struct Blocking {
  std::int64_t query_slice = 0;    ///< query rows at once
  std::int64_t context_block = 0;  ///< keys at once (the MHA paths), a multiple of 64 unless it is everything
};

/// Which rows take which path, in which order, and the workspace that needs. One plan serves all layers of a step that
/// have the same Attention; only `remake` and `refresh` change it.
class HEADRACE_EXPORT Plan {
 public:
  [[nodiscard]] const Attention& attention() const noexcept { return attention_; }
  [[nodiscard]] std::span<const RequestPlan> requests() const noexcept { return requests_; }
  [[nodiscard]] std::int64_t workspace_bytes() const noexcept { return workspace_bytes_; }
  [[nodiscard]] int threads() const noexcept { return threads_; }
  /// Made from exact lengths (Batch::exact): `attend` then takes no others.
  [[nodiscard]] bool exact() const noexcept { return exact_; }
  [[nodiscard]] const Blocking& blocking(Path path) const noexcept { return blocking_[static_cast<std::size_t>(path)]; }
  /// Bytes of the workspace that keep what a path made of a selection after the call: on a GPU the union lists of
  /// topk_mqa and the bit masks of masked_mha. Another layer with the same selection may use them
  /// (Inputs::selection_kept). 0 where not all of them exist at once, or where the workspace limit has no room for them
  /// beside the other paths' work.
  [[nodiscard]] std::int64_t kept_bytes(Path path) const noexcept {
    return kept_bytes_[static_cast<std::size_t>(path)];
  }
  /// Bytes of a GPU's memory that the plan's tables take (headrace::upload); 0 for a plan of the processor.
  [[nodiscard]] std::int64_t table_bytes() const noexcept { return table_bytes_; }
  /// Whether they were uploaded since the plan was made or remade. A refresh leaves them as they are. A copy of a plan
  /// has those that the plan had, in the same memory.
  [[nodiscard]] bool has_tables() const noexcept { return uploaded_; }
  /// What a GPU does for the plan, null for a plan of the processor, and where its tables are. For the library's own
  /// use.
  [[nodiscard]] const attention::DevicePasses* device_passes() const noexcept { return device_passes_.get(); }
  [[nodiscard]] const std::byte* tables() const noexcept { return tables_; }
  [[nodiscard]] const Device& device() const noexcept { return limits_.device; }
  /// Why a request takes its path, as text. Texts are made when they are asked for, from the same predictions.
  /// @throws Error unless there is such a request
  [[nodiscard]] std::string reason(std::int64_t request) const;
  /// Every other path for a request. @throws Error unless there is such a request
  [[nodiscard]] std::vector<Alternative> alternatives(std::int64_t request) const;
  /// The whole decision as text, one block a request.
  [[nodiscard]] std::string explain() const;

  /// Makes the plan anew for another batch, in the memory that it has: afterwards it is what headrace::plan would make
  /// of that batch with the attention, limits and hints it was made with. What those say was checked then. So a caller
  /// that plans every step allocates no memory, once the plan has been made for a batch of as many requests and as much
  /// work. For a GPU it calls nothing of CUDA, so that it never waits, and the tables have to be uploaded anew.
  /// @throws Error as headrace::plan does; the plan is unchanged then
  void remake(const Batch& batch);

  /// Makes this the plan of a later batch, with as many requests, none longer than the plan was made for. Which rows
  /// take which path, the blocking and the workspace stay. requests(), with the rows that read the selection and the
  /// predicted times, exact() and explain() become those of the later lengths. `attend` then takes these lengths, or
  /// less where they are bounds. A plan may be refreshed any number of times, to shorter lengths and to longer ones
  /// again.
  /// @throws Error naming a request that is longer than the plan was made for, or that is no longer covered on a path
  ///         that needs it; the plan is unchanged then
  void refresh(const Batch& later);

 private:
  friend class Router;
  friend Plan plan(const Attention& attention, const Batch& batch, const Limits& limits, const Hints& hints);
  friend void upload(Plan& plan, std::span<std::byte> tables, Stream stream);
  Attention attention_;
  Limits limits_;
  std::optional<Path> force_;
  Profile profile_;
  std::array<bool, 3> serves_{};       ///< whether each path serves the attention at all
  std::vector<RequestPlan> made_for_;  ///< the requests as the plan was made for them: the bounds of every refresh
  std::vector<RequestPlan> requests_;  ///< the requests of the latest batch
  std::vector<RequestPlan> next_;      ///< those of a batch that may yet be refused
  Blocking blocking_[3];
  std::shared_ptr<attention::DevicePasses> device_passes_;
  std::byte* tables_ = nullptr;
  std::int64_t table_bytes_ = 0;
  std::int64_t workspace_bytes_ = 0;
  std::int64_t product_bytes_ = 0;  ///< of it, at its end, for a GPU's matrix products
  std::array<std::int64_t, 3> kept_bytes_{};
  int threads_ = 1;
  bool made_exact_ = false;
  bool exact_ = false;
  bool uploaded_ = false;
};

/// Chooses for every request the exact path of least predicted time. The first plan of a geometry on a GPU warms the
/// device up, where CudaDevice::warm_up has not.
/// @throws Error for malformed lengths, a forced path that cannot run (with its reasons), or a workspace limit below
///         the minimum (which the error states)
[[nodiscard]] HEADRACE_EXPORT Plan plan(const Attention& attention, const Batch& batch, const Limits& limits = {},
                                        const Hints& hints = {});

/// What an engine reserves once: bytes of workspace that are enough for the plan of every batch within
/// limits.max_tokens and limits.max_seq_len, which must be stated. A batch has at most limits.max_requests requests.
/// Where that is not stated it is limits.max_tokens, so an engine that pads its batches with requests without query
/// tokens states it.
/// @throws Error when a limit is not stated, or limits.workspace_bytes is below what some path needs at least
[[nodiscard]] HEADRACE_EXPORT std::int64_t workspace_bound(const Attention& attention, const Limits& limits);

/// The same of Plan::table_bytes: bytes of a GPU's memory that are enough for the tables of every such plan. 0 for the
/// processor.
/// @throws Error as workspace_bound does
[[nodiscard]] HEADRACE_EXPORT std::int64_t table_bound(const Attention& attention, const Limits& limits);

/// The reasons why a path cannot serve rows at positions [begin, end) of a request on a device; empty when it can.
/// `exact` as in Batch.
[[nodiscard]] HEADRACE_EXPORT std::vector<std::string> unmet_requirements(Path path, const Attention& attention,
                                                                          std::int64_t begin, std::int64_t end,
                                                                          bool exact, const Device& device = {});

}  // namespace headrace
