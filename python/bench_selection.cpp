// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "bench_api.h"
#include "capi/errors.h"
#include "selection/generators.h"
#include "tensor.h"

namespace headrace::python {
namespace {

selection::Generator generator_of(const char* text, std::int64_t topk) {
  selection::Generator generator = selection::parse_generator(text);
  generator.topk = topk;
  return generator;
}

}  // namespace
}  // namespace headrace::python

HrError* hr_selection_width(const char* generator, int64_t topk, int64_t* width) {
  return headrace::capi::guarded([&] { *width = headrace::python::generator_of(generator, topk).width(); });
}

HrError* hr_fill_selection(const char* generator, int64_t topk, uint64_t seed, int64_t request, int64_t context_len,
                           HrTensor index, HrTensor count) {
  namespace py = headrace::python;
  return headrace::capi::guarded([&] {
    headrace::selection::Generator from = py::generator_of(generator, topk);
    from.seed = seed;
    from.fill(request, context_len, py::required_output("index", index, {}).as<std::int32_t>("index"),
              py::required_output("count", count, {}).as<std::int32_t>("count"));
  });
}
