// SPDX-License-Identifier: Apache-2.0
#include "routing/cost_model.h"

#include <algorithm>

namespace headrace {

Profile Profile::nominal_cpu(DType compute) {
  Profile profile;
  profile.name = compute == DType::float32 ? "nominal CPU, float32" : "nominal CPU, bfloat16";
  // A current server core with 256-bit or wider vectors; attention runs in float32 in both dtypes. bfloat16 products
  // are not assumed to be faster, because many CPUs have no instructions for them.
  profile.product_gflops = 80.0;
  profile.mha_gflops = 50.0;
  profile.mqa_gflops = 45.0;
  profile.mask_gkeys = 0.4;
  profile.bandwidth_gbytes = 10.0;
  return profile;
}

namespace routing {

double predict_ms(const attention::Work& work, const Profile& profile, int threads, std::int64_t rows) {
  const double all = threads;
  const double some = static_cast<double>(std::min<std::int64_t>(threads, std::max<std::int64_t>(rows, 1)));
  const double seconds =
      work.product_flops / (profile.product_gflops * 1e9 * all) + work.mha_flops / (profile.mha_gflops * 1e9 * all) +
      work.mqa_flops / (profile.mqa_gflops * 1e9 * some) + work.mask_keys / (profile.mask_gkeys * 1e9 * some) +
      work.cache_bytes / (profile.bandwidth_gbytes * 1e9);
  return seconds * 1e3;
}

}  // namespace routing
}  // namespace headrace
