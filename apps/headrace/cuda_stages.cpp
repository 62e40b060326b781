// SPDX-License-Identifier: Apache-2.0
//
// A layer's stages on a GPU. Times are between events on the stream; what a step brings from the host is copied outside
// of them.
#include <algorithm>
#include <utility>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/probe.h"
#include "device/cuda/stream.h"
#include "device/cuda/tensor.h"
#include "device/cuda/timer.h"
#include "headrace/cuda_layer.h"
#include "layer/cuda/indexer.h"
#include "stages.h"
#include "step_selection.h"

namespace headrace::app {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::DeviceTensor;

/// A copy of a cache of the host's: its pages on the GPU.
class CacheOnDevice {
 public:
  CacheOnDevice() = default;
  CacheOnDevice(const PageTable& table, std::int64_t row_bytes, float scale = 1.0F) : host_(table, row_bytes, scale) {
    const MutableCacheView view = host_.view();
    pages_ = DeviceBuffer(view.num_pages * view.page_stride);
    pages_.fill(std::byte{0});
  }
  [[nodiscard]] MutableCacheView view() {
    MutableCacheView view = host_.view();
    view.data = pages_.data();
    return view;
  }
  /// What is on the GPU, copied to the host.
  [[nodiscard]] CacheView on_host() {
    const MutableCacheView view = host_.view();
    pages_.download({view.data, static_cast<std::size_t>(pages_.size_bytes())});
    return view;
  }

 private:
  CacheMemory host_;
  DeviceBuffer pages_;
};

/// What a step's stages read besides hidden states and caches, on the GPU.
class StepOnDevice {
 public:
  explicit StepOnDevice(const Step& step)
      : query_start_(step.requests().query_start),
        seq_len_(step.requests().seq_len),
        block_table_(step.requests().block_table),
        positions_(step.positions()),
        slots_(step.slots()) {}

  [[nodiscard]] Requests requests() const {
    return {query_start_.view_as<std::int32_t>(), seq_len_.view_as<std::int32_t>(),
            block_table_.view_as<std::int32_t>()};
  }
  [[nodiscard]] View<const std::int32_t> positions() const { return positions_.view_as<std::int32_t>(); }
  [[nodiscard]] View<const std::int64_t> slots() const { return slots_.view_as<std::int64_t>(); }

 private:
  DeviceTensor query_start_;
  DeviceTensor seq_len_;
  DeviceTensor block_table_;
  DeviceTensor positions_;
  DeviceTensor slots_;
};

class CudaStages final : public Stages {
 public:
  CudaStages(const ModelConfig& config, std::int64_t number, LayerWeights weights, float cache_scale,
             const std::shared_ptr<CudaDevice>& device)
      : layer_(config, number, weights, device),
        cache_scale_(cache_scale),
        kv_b_proj_(std::move(weights.kv_b_proj)),
        sink_(std::move(weights.sink)) {
    // Where the kernels do not serve the geometry, plans say so.
    Attention dense = layer_.attention(CacheFormat::bfloat16);
    dense.rule = SelectionRule::none();
    if (unmet_requirements(Path::dense_mha, dense, 0, 1, true, {.cuda = device}).empty()) {
      device->warm_up(dense);
    }
  }

  [[nodiscard]] const ModelConfig& config() const noexcept override { return layer_.config(); }
  [[nodiscard]] bool scores() const noexcept override { return layer_.scores(); }
  [[nodiscard]] Attention attention(CacheFormat format) const override { return layer_.attention(format); }

  void begin(const PageTable& table, CacheFormat format, std::int64_t workspace_bytes) override {
    format_ = format;
    latent_cache_ = CacheOnDevice(table, cache_row_bytes(format, config().geometry), cache_scale_);
    if (scores()) {
      index_cache_ = CacheOnDevice(table, config().indexer->cache_row_bytes(DType::bfloat16));
    }
    workspace_ = DeviceBuffer(workspace_bytes);
  }

  void time(double& total_ms, const std::function<void()>& work) override {
    timer_.start(stream_);
    work();
    timer_.stop(stream_);
    total_ms += timer_.milliseconds();
  }

  void open(const Step& step, ConstAnyView hidden) override {
    step_ = &step;
    on_device_.emplace(step);
    hidden_ = {};
    hidden_ = DeviceTensor(hidden);
    selection_ = {};
  }
  void project(bool scoring) override {
    projected_ = layer_.project(hidden_.view_as<bfloat16>(), on_device_->positions(), stream_, scoring);
  }
  void project_keys() override {
    projected_ = layer_.project_keys(hidden_.view_as<bfloat16>(), on_device_->positions(), stream_);
  }
  void append() override {
    layer_.append(projected_, {latent_cache_.view(), scores() ? index_cache_.view() : MutableCacheView()}, format_,
                  on_device_->requests(), on_device_->slots(), stream_);
  }

  void select(const Plan& plan) override {
    selection_ = layer_.select(plan, projected_, scores() ? index_cache_.view() : MutableCacheView(),
                               on_device_->requests(), workspace_of_select(), stream_);
  }
  void select_all() override {
    selection_ = selector_.select(*config().indexer, projected_, index_cache_.view(), on_device_->requests(),
                                  longest_seq_len(*step_), workspace_of_select(), *layer_.device(), stream_);
  }
  void use(const Selection& selection) override {
    index_ = DeviceTensor(selection.index);
    count_ = DeviceTensor(selection.count);
    selection_ = {index_.view_as<std::int32_t>(), count_.view_as<std::int32_t>(), selection.space};
  }
  void share(const Selection& selection) override { selection_ = selection; }
  [[nodiscard]] Selection selection() const override { return selection_; }

  void prepare(const Plan& plan, bool with_lse) override {
    const Geometry& g = config().geometry;
    attended_ = {};
    attended_ = DeviceTensor(DType::bfloat16, {step_->tokens(), g.num_heads, g.v_head_dim});
    lse_ = with_lse ? DeviceTensor(DType::float32, {step_->tokens(), g.num_heads}) : DeviceTensor();
    out_ = {};
    out_ = DeviceTensor(DType::bfloat16, {step_->tokens(), config().hidden_size});
    if (workspace_.size_bytes() < plan.workspace_bytes()) {
      workspace_ = {};
      workspace_ = DeviceBuffer(plan.workspace_bytes());
    }
    if (tables_.size_bytes() < plan.table_bytes()) {
      tables_ = {};
      tables_ = DeviceBuffer(plan.table_bytes());
    }
    prepared_ = plan;
    upload(prepared_, {tables_.data(), static_cast<std::size_t>(tables_.size_bytes())}, stream_);
  }
  void attend(const Plan& /*plan*/) override {
    headrace::attend(prepared_, layer_.attention_weights(),
                     {projected_.q, latent_cache_.view(), on_device_->requests(), selection_},
                     {attended_.view(), lse_.view_as<float>()},
                     {workspace_.data(), static_cast<std::size_t>(workspace_.size_bytes())}, stream_);
  }
  void output() override { layer_.output(attended_.view_as<bfloat16>(), out_.view_as<bfloat16>(), stream_); }
  void close() override {
    device::cuda::synchronize(stream_);  // another layer, which has its own stream, may go on from here
    copies_.clear();
  }

  [[nodiscard]] AppendedStep appended() override {
    return {copy(projected_.q), copy_rows(projected_.latent), copy_rows(projected_.rope_key), latent_cache_.on_host()};
  }
  [[nodiscard]] AttendedStep attended() override {
    AttendedStep result;
    result.weights.kv_b_proj = std::as_const(kv_b_proj_).view();
    result.weights.sink = sink_.empty() ? View<const float>() : std::as_const(sink_).view_as<float>();
    result.inputs = {copy(projected_.q), latent_cache_.on_host(), step_->requests(), copy(selection_)};
    result.out = copy(attended_.view_as<bfloat16>());
    result.lse = copy(lse_.view_as<float>());
    return result;
  }
  [[nodiscard]] ScoredStep scored() override {
    return {index_cache_.on_host(), {copy(projected_.index_query), copy(projected_.index_weight)}, copy(selection_)};
  }
  [[nodiscard]] ConstAnyView out() override { return copy(out_.view_as<bfloat16>()); }

 private:
  /// A copy on the host of a contiguous array on the GPU, until the step ends.
  template <class T>
  View<const std::remove_const_t<T>> copy(const View<T>& view) {
    using Element = std::remove_const_t<T>;
    if (view.empty()) {
      return {};
    }
    Tensor& host = copies_.emplace_back(DTypeOf<Element>::value, std::initializer_list<std::int64_t>{view.size()});
    device::cuda::download(reinterpret_cast<const std::byte*>(view.data()),
                           {host.data(), static_cast<std::size_t>(host.size_bytes())}, stream_);
    return View<const Element>(host.view_as<Element>().data(), view.rank(), view.shape(), view.strides());
  }
  /// The same of a matrix whose rows lie apart, with what lies between them.
  template <class T>
  View<const T> copy_rows(const View<const T>& view) {
    if (view.empty()) {
      return {};
    }
    const std::int64_t size = (view.dim(0) - 1) * view.stride(0) + view.dim(1);
    const View<const T> flat = copy(View<const T>(view.data(), {size}));
    return View<const T>(flat.data(), view.rank(), view.shape(), view.strides());
  }
  Selection copy(const Selection& selection) { return {copy(selection.index), copy(selection.count), selection.space}; }

  [[nodiscard]] std::int64_t workspace_of_select() const {
    return scores() ? select_workspace(*config().indexer, longest_seq_len(*step_)) : 0;
  }

  CudaLayer layer_;
  float cache_scale_;
  Tensor kv_b_proj_;  // on the host, for checks
  Tensor sink_;
  device::cuda::OwnedStream stream_;
  device::cuda::Timer timer_;
  CacheFormat format_ = CacheFormat::bfloat16;
  CacheOnDevice latent_cache_;
  CacheOnDevice index_cache_;
  DeviceBuffer workspace_;
  DeviceBuffer tables_;
  Plan prepared_;  // with its tables on the GPU
  const Step* step_ = nullptr;
  std::optional<StepOnDevice> on_device_;
  DeviceTensor hidden_;
  CudaProjected projected_;
  layer::cuda::Selector selector_;
  DeviceTensor index_;
  DeviceTensor count_;
  Selection selection_;
  DeviceTensor attended_;
  DeviceTensor lse_;
  DeviceTensor out_;
  std::vector<Tensor> copies_;  // what checks read
};

}  // namespace

std::unique_ptr<Stages> make_cuda_stages(const ModelConfig& config, std::int64_t layer, LayerWeights weights,
                                         float cache_scale, const std::shared_ptr<CudaDevice>& device) {
  return std::make_unique<CudaStages>(config, layer, std::move(weights), cache_scale, device);
}

}  // namespace headrace::app
