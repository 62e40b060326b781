// SPDX-License-Identifier: Apache-2.0
#include "support/layer_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "headrace/error.h"

namespace headrace::test {
namespace {

Tensor unwritten(std::int64_t bytes) {
  Tensor result(DType::uint8, {bytes});
  std::memset(result.data(), 0xff, static_cast<std::size_t>(bytes));
  return result;
}

MutableCacheView paged(Tensor& bytes, std::int64_t pages, std::int64_t page_size, std::int64_t row_bytes) {
  return {bytes.data(), pages, page_size, page_size * row_bytes, row_bytes};
}

template <class T>
View<const T> view_of(const std::vector<T>& values) {
  return View<const T>(values.data(), {static_cast<std::int64_t>(values.size())});
}

float element(const Tensor& tensor, std::int64_t i) {
  return tensor.dtype() == DType::float32 ? tensor.view_as<float>().data()[i]
                                          : static_cast<float>(tensor.view_as<bfloat16>().data()[i]);
}

}  // namespace

LayerRun::LayerRun(const Layer& layer, CacheFormat format, const std::vector<std::int64_t>& capacity,
                   std::int64_t page_size)
    : layer_(layer), format_(format), page_size_(page_size), seq_len_(capacity.size(), 0) {
  for (const std::int64_t tokens : capacity) {
    max_pages_ = std::max(max_pages_, (tokens + page_size - 1) / page_size);
  }
  const auto requests = static_cast<std::int64_t>(capacity.size());
  const std::int64_t pages = requests * max_pages_;
  for (std::int64_t page = pages - 1; page >= 0; --page) {
    block_table_.push_back(static_cast<std::int32_t>(page));
  }
  const std::int64_t row_bytes = cache_row_bytes(format, layer.config().geometry);
  latent_bytes_ = unwritten(pages * page_size * row_bytes);
  caches_.latent = paged(latent_bytes_, pages, page_size, row_bytes);
  if (layer.scores()) {
    const std::int64_t index_row_bytes = layer.config().indexer->cache_row_bytes(layer.compute());
    index_bytes_ = unwritten(pages * page_size * index_row_bytes);
    caches_.index = paged(index_bytes_, pages, page_size, index_row_bytes);
  }
}

void LayerRun::open(const std::vector<std::int32_t>& query_len) {
  query_len_ = query_len;
  query_start_.assign(1, 0);
  positions_.clear();
  slots_.clear();
  for (std::size_t b = 0; b < query_len.size(); ++b) {
    for (std::int32_t position = seq_len_[b]; position < seq_len_[b] + query_len[b]; ++position) {
      const std::size_t page =
          b * static_cast<std::size_t>(max_pages_) + static_cast<std::size_t>(position / page_size_);
      positions_.push_back(position);
      slots_.push_back(block_table_[page] * page_size_ + position % page_size_);
    }
    seq_len_[b] += query_len[b];
    query_start_.push_back(query_start_.back() + query_len[b]);
  }
}

View<const std::int32_t> LayerRun::positions() const { return view_of(positions_); }

View<const std::int64_t> LayerRun::slot_mapping() const { return view_of(slots_); }

Requests LayerRun::requests() const {
  const auto requests = static_cast<std::int64_t>(seq_len_.size());
  return {view_of(query_start_), view_of(seq_len_),
          View<const std::int32_t>(block_table_.data(), {requests, max_pages_})};
}

Plan LayerRun::plan(const StepOptions& options) const {
  Attention attention = layer_.attention(format_);
  attention.rule = options.rule.value_or(attention.rule);
  Hints hints;
  hints.force = options.force;
  Limits limits;
  limits.device.threads = options.threads;
  return headrace::plan(attention, {query_len_, seq_len_, true}, limits, hints);
}

Tensor LayerRun::forward(ConstAnyView hidden, const StepOptions& options) const {
  const Plan step = plan(options);
  Tensor workspace(DType::uint8, {step.workspace_bytes()});
  return layer_.forward(step, hidden, positions(), caches_, requests(), slot_mapping(), options.shared,
                        {workspace.data(), static_cast<std::size_t>(workspace.size_bytes())});
}

Tensor run_prompt(const Layer& layer, CacheFormat format, ConstAnyView hidden, std::int64_t chunk,
                  View<const std::int32_t> shared, std::optional<Path> force) {
  const std::int64_t length = hidden.dim(0);
  LayerRun run(layer, format, {length});
  Tensor result(DType::float32, {length, hidden.dim(1)});
  for (std::int64_t begin = 0; begin < length; begin += chunk) {
    const std::int64_t end = std::min(length, begin + chunk);
    StepOptions options;
    options.force = force;
    if (!shared.empty()) {
      options.shared = Selection{shared.slice(begin, end), {}};
    }
    run.open({static_cast<std::int32_t>(end - begin)});
    const Tensor out = to_float(run.forward(hidden.slice(begin, end), options));
    std::memcpy(result.view_as<float>().at(begin), out.data(), static_cast<std::size_t>(out.size_bytes()));
  }
  return result;
}

Tensor to_float(const Tensor& tensor) { return convert(tensor, DType::float32); }

Tensor convert(const Tensor& tensor, DType dtype) {
  Tensor result(dtype, {tensor.dim(0), tensor.dim(1)});
  for (std::int64_t i = 0; i < tensor.dim(0) * tensor.dim(1); ++i) {
    if (dtype == DType::float32) {
      result.view_as<float>().data()[i] = element(tensor, i);
    } else {
      result.view_as<bfloat16>().data()[i] = bfloat16(element(tensor, i));
    }
  }
  return result;
}

RelativeError relative_error(View<const float> actual, View<const float> expected) {
  actual.expect("actual", {expected.dim(0), expected.dim(1)});
  RelativeError result;
  double all_difference = 0.0;
  double all_norm = 0.0;
  for (std::int64_t t = 0; t < expected.dim(0); ++t) {
    double difference = 0.0;
    double norm = 0.0;
    for (std::int64_t i = 0; i < expected.dim(1); ++i) {
      const double d = static_cast<double>(actual(t, i)) - expected(t, i);
      difference += d * d;
      norm += static_cast<double>(expected(t, i)) * expected(t, i);
    }
    const double row = std::sqrt(difference / norm);
    // NaN compares false with everything; it must not vanish in a maximum.
    result.worst_row = std::isfinite(row) ? std::max(result.worst_row, row) : std::numeric_limits<double>::infinity();
    all_difference += difference;
    all_norm += norm;
  }
  result.whole = std::sqrt(all_difference / all_norm);
  return result;
}

}  // namespace headrace::test
