// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "capi/attention.h"
#include "capi/errors.h"
#include "capi/handles.h"
#include "capi/structs.h"
#include "headrace/c_api.h"
#include "headrace/version.h"

using namespace headrace;        // NOLINT(google-build-using-namespace): the functions are the namespace's C names
using namespace headrace::capi;  // NOLINT(google-build-using-namespace)

const char* hr_version() { return version().data(); }

int32_t hr_device_count() { return CudaDevice::count(); }

HrError* hr_device_create(int32_t ordinal, HrDevice** device) {
  return guarded([&] {
    HrDevice*& result = required("device", device);
    auto made = std::make_unique<HrDevice>();
    made->cuda = std::make_shared<CudaDevice>(ordinal);
    result = made.release();
  });
}

const char* hr_device_name(const HrDevice* device) { return device->cuda->name().c_str(); }
const char* hr_device_unmet(const HrDevice* device) { return device->cuda->unmet().c_str(); }

HrError* hr_device_warm_up(const HrDevice* device, const HrAttention* attention) {
  return guarded([&] { required("device", device).cuda->warm_up(attention_of(attention)); });
}

void hr_device_free(HrDevice* device) { delete device; }
