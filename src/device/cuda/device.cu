// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "attention/mha/bit_mask_cuda.h"
#include "attention/mha/sm90.h"
#include "attention/mqa/sm90.h"
#include "attention/paths/cuda_path.h"
#include "attention/paths/mqa_sm90.h"
#include "cache/cuda.h"
#include "device/cuda/current.h"
#include "device/cuda/device.h"
#include "device/cuda/stream.h"
#include "headrace/error.h"
#include "selection/cuda/index_cache.h"
#include "selection/cuda/select.h"

namespace headrace {

const attention::cuda::Projections& CudaDevice::State::prepare(const Geometry& g) {
  const std::scoped_lock lock(mutex_);
  const auto key = std::make_tuple(g.num_heads, g.kv_lora_rank, g.qk_nope_head_dim, g.qk_rope_head_dim, g.v_head_dim);
  const auto found = projections_.find(key);
  if (found != projections_.end()) {
    return found->second;
  }
  const device::cuda::CurrentDevice current(ordinal);
  attention::cuda::Projections made(products, g);
  made.warm_up(Stream{});
  cache::cuda::load();
  selection::cuda::load_append_index_keys();
  selection::cuda::load_select();
  attention::load_upload();
  if (attention::mha::sm90::unmet_requirements(g).empty()) {
    attention::mha::sm90::load(g);
    attention::cuda::load_bit_masks();
  }
  if (attention::mqa::sm90::unmet_requirements(g).empty()) {
    attention::MqaSm90::load();
  }
  device::cuda::synchronize(Stream{});
  return projections_.emplace(key, std::move(made)).first->second;
}

int device::cuda::served_ordinal(const CudaDevice& device) {
  if (!device.unmet().empty()) {
    throw UnsupportedError("device", "a GPU that the kernels can run on", device.unmet());
  }
  return device.ordinal();
}

int CudaDevice::count() noexcept { return device::cuda::device_count(); }

CudaDevice::CudaDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= count()) {
    const int found = count();
    if (found == 0) {
      throw UnsupportedError("device", "a GPU and its driver", "none: no CUDA device was found");
    }
    throw Error("device",
                found == 1 ? "0, the one GPU that was found" : "one of the GPUs 0 to " + std::to_string(found - 1),
                std::to_string(ordinal));
  }
  const device::cuda::CurrentDevice current(ordinal);
  state_ = std::make_unique<State>();
  state_->ordinal = ordinal;
  state_->capability = device::cuda::probe(ordinal);
  if (!state_->capability.is_sm90()) {
    state_->unmet = "its kernels are compiled for compute capability 9.0, " + state_->capability.name + " has " +
                    std::to_string(state_->capability.major) + "." + std::to_string(state_->capability.minor);
  }
}

CudaDevice::~CudaDevice() = default;

int CudaDevice::ordinal() const noexcept { return state_->ordinal; }
const std::string& CudaDevice::name() const noexcept { return state_->capability.name; }
const std::string& CudaDevice::unmet() const noexcept { return state_->unmet; }

void CudaDevice::warm_up(const Attention& attention) {
  attention.validate();
  state_->prepare(attention.geometry);
}

}  // namespace headrace
