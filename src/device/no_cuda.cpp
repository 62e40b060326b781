// SPDX-License-Identifier: Apache-2.0
//
// What a library built without CUDA answers: that there is no GPU. Since no CudaDevice can be made, no plan is ever for
// one, and what follows that in the interface is never reached.

#include "attention/paths/cuda_path.h"
#include "attention/paths/path.h"
#include "headrace/cuda.h"
#include "headrace/cuda_indexer.h"
#include "headrace/cuda_layer.h"
#include "headrace/error.h"

namespace headrace {
namespace {

[[noreturn]] void refuse() {
  throw UnsupportedError("device", "a library built with CUDA (HEADRACE_CUDA)", "one without");
}

}  // namespace

// The signatures are those of the interface.
// NOLINTBEGIN(readability-convert-member-functions-to-static,performance-unnecessary-value-param)

struct CudaDevice::State {};

int CudaDevice::count() noexcept { return 0; }
CudaDevice::CudaDevice(int /*ordinal*/) { refuse(); }
CudaDevice::~CudaDevice() = default;
int CudaDevice::ordinal() const noexcept { return 0; }
const std::string& CudaDevice::name() const noexcept {
  static const std::string none;
  return none;
}
const std::string& CudaDevice::unmet() const noexcept { return name(); }
void CudaDevice::warm_up(const Attention& /*attention*/) { refuse(); }

void attend(const Plan& /*plan*/, const Weights& /*weights*/, const Inputs& /*inputs*/, const Outputs& /*outputs*/,
            std::span<std::byte> /*workspace*/, Stream /*stream*/) {
  refuse();
}

void append(const Geometry& /*geometry*/, CacheFormat /*format*/, const MutableCacheView& /*cache*/,
            ConstAnyView /*latent*/, ConstAnyView /*rope_key*/, View<const std::int64_t> /*slot_mapping*/,
            const CudaDevice& /*device*/, Stream /*stream*/) {
  refuse();
}

void append_index_keys(const IndexerGeometry& /*indexer*/, const MutableCacheView& /*cache*/, ConstAnyView /*key*/,
                       ConstAnyView /*gate*/, View<const float> /*offset_bias*/, const Requests& /*requests*/,
                       View<const std::int64_t> /*slot_mapping*/, const CudaDevice& /*device*/, Stream /*stream*/) {
  refuse();
}

SelectWorkspace cuda_select_workspace(const IndexerGeometry& /*indexer*/, std::int64_t /*tokens*/,
                                      std::int64_t /*longest_seq_len*/) {
  refuse();
}

void select(const IndexerGeometry& /*indexer*/, const CacheView& /*cache*/, const IndexQueries& /*queries*/,
            const Requests& /*requests*/, View<const std::int64_t> /*scoring_begin*/, std::int64_t /*longest_seq_len*/,
            View<std::int32_t> /*index*/, View<std::int32_t> /*count*/, std::span<std::byte> /*workspace*/,
            const CudaDevice& /*device*/, Stream /*stream*/, TokenRange /*rows*/) {
  refuse();
}

void score_rows(const IndexerGeometry& /*indexer*/, const CacheView& /*cache*/, const IndexQueries& /*queries*/,
                const Requests& /*requests*/, std::int64_t /*longest_seq_len*/, View<float> /*scores*/,
                const CudaDevice& /*device*/, Stream /*stream*/, TokenRange /*rows*/) {
  refuse();
}

void upload(Plan& /*plan*/, std::span<std::byte> /*tables*/, Stream /*stream*/) { refuse(); }

struct CudaLayer::State {
  ModelConfig config;
  std::shared_ptr<CudaDevice> device;
};

CudaLayer::CudaLayer(ModelConfig /*config*/, std::int64_t /*layer*/, const LayerWeights& /*weights*/,
                     std::shared_ptr<CudaDevice> /*device*/) {
  refuse();
}
CudaLayer::~CudaLayer() = default;
const ModelConfig& CudaLayer::config() const noexcept { return state_->config; }
const std::shared_ptr<CudaDevice>& CudaLayer::device() const noexcept { return state_->device; }
Weights CudaLayer::attention_weights() const { refuse(); }
bool CudaLayer::scores() const noexcept { return false; }
Attention CudaLayer::attention(CacheFormat /*format*/) const { refuse(); }
CudaProjected CudaLayer::project(View<const bfloat16> /*hidden*/, View<const std::int32_t> /*positions*/,
                                 Stream /*stream*/, bool /*scoring*/) {
  refuse();
}
CudaProjected CudaLayer::project_keys(View<const bfloat16> /*hidden*/, View<const std::int32_t> /*positions*/,
                                      Stream /*stream*/) {
  refuse();
}
void CudaLayer::append(const CudaProjected& /*projected*/, const LayerCaches& /*caches*/, CacheFormat /*format*/,
                       const Requests& /*requests*/, View<const std::int64_t> /*slot_mapping*/,
                       Stream /*stream*/) const {
  refuse();
}
Selection CudaLayer::select(const Plan& /*plan*/, const CudaProjected& /*projected*/, const CacheView& /*index_cache*/,
                            const Requests& /*requests*/, std::int64_t /*workspace_bytes*/, Stream /*stream*/) {
  refuse();
}
void CudaLayer::output(View<const bfloat16> /*attended*/, View<bfloat16> /*out*/, Stream /*stream*/) const { refuse(); }
void CudaLayer::forward(const Plan& /*plan*/, View<const bfloat16> /*hidden*/, View<const std::int32_t> /*positions*/,
                        const LayerCaches& /*caches*/, const Requests& /*requests*/,
                        View<const std::int64_t> /*slot_mapping*/, std::optional<Selection> /*shared*/,
                        std::span<std::byte> /*workspace*/, View<bfloat16> /*out*/, Stream /*stream*/,
                        bool /*selection_kept*/) {
  refuse();
}

// NOLINTEND(readability-convert-member-functions-to-static,performance-unnecessary-value-param)

namespace attention {

struct DevicePasses {};

const PathAlgorithm& cuda_path(Path /*path*/) { refuse(); }

std::int64_t prepare_device(CudaDevice& /*device*/, const Geometry& /*geometry*/) { refuse(); }

std::int64_t plan_device_passes(const Plan& /*plan*/, const PathExtents& /*extents*/,
                                std::shared_ptr<DevicePasses>& /*passes*/) {
  refuse();
}

}  // namespace attention
}  // namespace headrace
