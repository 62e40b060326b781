// SPDX-License-Identifier: Apache-2.0
//
// What a library built without CUDA answers: that there is no GPU. Since no CudaDevice can be made, no plan is ever for
// one, and what follows that in the interface is never reached.

#include "attention/paths/cuda_path.h"
#include "attention/paths/path.h"
#include "headrace/cuda.h"
#include "headrace/error.h"

namespace headrace {
namespace {

[[noreturn]] void refuse() { throw Error("device", "a library built with CUDA (HEADRACE_CUDA)", "one without"); }

}  // namespace

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

namespace attention {

struct DevicePasses {};

const PathAlgorithm& cuda_path(Path /*path*/) { refuse(); }

std::shared_ptr<const DevicePasses> make_device_passes(const Plan& /*plan*/) { refuse(); }

}  // namespace attention
}  // namespace headrace
