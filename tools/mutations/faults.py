# SPDX-License-Identifier: Apache-2.0
"""The faults that tools/mutate puts into the sources, one at a time: slips that a reviewer could overlook.

Fifteen kinds of fault, each as one variant for every place in the code where it can be made (KIND/PLACE). `before` must
occur exactly once in its file. `suspects` are the test programs that ought to notice, the likeliest first.
"""
from dataclasses import dataclass
from pathlib import Path

KINDS = {
    "causal-test": "drop the causal test",
    "repeats": "count repeats twice",
    "page-edge": "be off by one at a page edge",
    "sink": "ignore the sink",
    "lse-rescale": "skip the LSE rescale",
    "past-count": "read past the count",
    "rope-pairing": "pair the wrong rope dims",
    "epsilon": "use the wrong epsilon",
    "empty-case": "merge without the empty case",
    "scale-group": "take the wrong scale group",
    "tile-across-requests": "let a tile span requests",
    "tail": "do not select the tail",
    "clip": "clip planned rows wrongly at other lengths",
    "parts": "continue a product wrongly in the next part",
    "space": "take a selection in the other space",
}

ATTENTION = ("paths_edge_test", "paths_property_test")
REFRESH = ("plan_refresh_test", "plan_bounds_test")
LAYER = ("layer_fields_test", "layer_test", "layer_recording_test")


class FaultError(Exception):
    """A fault that does not apply to the sources as they are."""


@dataclass(frozen=True)
class Fault:
    name: str  # KIND/PLACE
    what: str
    file: str
    before: str
    after: str
    suspects: tuple

    def apply(self, text):
        """The text with the fault in it, and the line where it lies."""
        count = text.count(self.before)
        if count != 1:
            raise FaultError(f"{self.name}: {self.file} holds its text {count} times instead of once:\n{self.before}")
        if self.before == self.after:
            raise FaultError(f"{self.name}: changes nothing")
        return text.replace(self.before, self.after), text.count("\n", 0, text.index(self.before)) + 1


def check(faults, root):
    """Raises FaultError unless every fault applies and every kind has one."""
    names = [fault.name for fault in faults]
    for fault in faults:
        if names.count(fault.name) != 1:
            raise FaultError(f"{fault.name}: named twice")
        if fault.name.partition("/")[0] not in KINDS:
            raise FaultError(f"{fault.name}: no such kind of fault")
        for suspect in fault.suspects:
            if not (root / "tests" / f"{suspect}.cpp").is_file():
                raise FaultError(f"{fault.name}: there is no tests/{suspect}.cpp")
        path = root / fault.file
        if not path.is_file():
            raise FaultError(f"{fault.name}: there is no {fault.file}")
        fault.apply(path.read_text(encoding="utf-8"))
    for kind in KINDS:
        if not any(name.startswith(kind + "/") for name in names):
            raise FaultError(f"{kind}: no fault of this kind")


def line_of(fault, root):
    return fault.apply((Path(root) / fault.file).read_text(encoding="utf-8"))[1]


FAULTS = (
    # ---- drop the causal test ----------------------------------------------------------------------------------------
    Fault(
        "causal-test/mask",
        "a selected key of the future counts",
        "src/attention/mha/bit_mask.cpp",
        "return entry <= row_position ? entry : -1;",
        "return entry < request_.seq_len ? entry : -1;",
        ATTENTION,
    ),
    Fault(
        "causal-test/covered",
        "a covered row under a mask sees all keys of its request",
        "src/attention/mha/bit_mask.cpp",
        "prefix_word(position + 1,",
        "prefix_word(request_.seq_len,",
        ATTENTION,
    ),
    Fault(
        "causal-test/dense-mha",
        "dense_mha has no diagonal",
        "src/attention/mha/cpu.cpp",
        "return prefix_word(slice_.first_position + row + 1, first_key);",
        "return ~std::uint64_t{0};",
        ATTENTION,
    ),
    Fault(
        "causal-test/packed-mqa",
        "rows of a packed tile see the whole union, later rows' keys included",
        "src/attention/mqa/cpu.cpp",
        "rows == 1 ? ~std::uint64_t{0} : columns_of(first + r, count)",
        "~std::uint64_t{0}",
        ATTENTION,
    ),
    Fault(
        "causal-test/indexer",
        "a row ranks the keys of the rows it is scored with",
        "src/selection/select.cpp",
        "std::min(end, candidates_.among(task.position + r + 1)) - begin",
        "std::min(end, candidates_.among(task.position + task.rows)) - begin",
        ("select_test",),
    ),
    Fault(
        "causal-test/validate",
        "`validate` does not count entries of the future",
        "src/selection/validate.cpp",
        "!slots_ && *key > position",
        "!slots_ && *key > request_.seq_len",
        ("validate_test",),
    ),
    Fault(
        "causal-test/oracle",
        "the oracle attends to the future",
        "src/attention/oracle.cpp",
        "if (key >= 0 && key <= query.position) {",
        "if (key >= 0 && key < inputs.requests.seq_len(query.request)) {",
        ("oracle_test",),
    ),
    # ---- count repeats twice -----------------------------------------------------------------------------------------
    Fault(
        "repeats/mask",
        "a repeated key is added to the mask again",
        "src/attention/mha/bit_mask.cpp",
        "words[static_cast<std::size_t>(key / kMaskKeys)] |= std::uint64_t{1} << (key % kMaskKeys);",
        "words[static_cast<std::size_t>(key / kMaskKeys)] += std::uint64_t{1} << (key % kMaskKeys);",
        ATTENTION,
    ),
    Fault(
        "repeats/validate",
        "`validate` counts a repeated key as attended",
        "src/selection/validate.cpp",
        "std::unique(keys_.begin(), keys_.end()) - keys_.begin();",
        "static_cast<std::int64_t>(keys_.size());",
        ("validate_test",),
    ),
    Fault(
        "repeats/oracle",
        "the oracle attends to a repeated key as often as it is named",
        "src/attention/oracle.cpp",
        "entries.erase(std::unique(entries.begin(), entries.end()), entries.end());",
        "",
        ("oracle_test",),
    ),
    # ---- be off by one at a page edge --------------------------------------------------------------------------------
    Fault(
        "page-edge/key-row",
        "the last row of a page is looked up in the next",
        "src/cache/requests.h",
        "requests.block_table(request, position / cache.page_size);",
        "requests.block_table(request, (position + 1) / cache.page_size);",
        ATTENTION,
    ),
    Fault(
        "page-edge/last-page",
        "slots of a request's last page, when it is not full, are not known",
        "src/attention/mha/bit_mask.cpp",
        "(request.seq_len + page_size - 1) / page_size",
        "request.seq_len / page_size",
        ("slot_edge_test",),
    ),
    Fault(
        "page-edge/end-of-keys",
        "the row after a request's last key counts as a key, where the page has one",
        "src/attention/mha/bit_mask.cpp",
        "return position < request_.seq_len ? position : -1;",
        "return position <= request_.seq_len ? position : -1;",
        ("slot_edge_test",),
    ),
    Fault(
        "page-edge/repeated-page",
        "slots of a page that a request names twice are the keys of its second place",
        "src/attention/mha/bit_mask.cpp",
        "a.page < b.page : a.block < b.block;",
        "a.page < b.page : a.block > b.block;",
        ("slot_edge_test",),
    ),
    Fault(
        "page-edge/refusal",
        "the last page of a request is not checked against the cache",
        "src/cache/requests.cpp",
        "i <= last; ++i",
        "i < last; ++i",
        ATTENTION,
    ),
    # ---- ignore the sink ---------------------------------------------------------------------------------------------
    Fault(
        "sink/everywhere",
        "no path applies the sink",
        "src/attention/merge.cpp",
        "sink == nullptr ? 1.0F : 1.0F / (1.0F + std::exp(*sink - lse))",
        "sink == nullptr ? 1.0F : 1.0F",
        ATTENTION,
    ),
    Fault(
        "sink/mha",
        "dense_mha and masked_mha forget it",
        "src/attention/paths/mha_steps.cpp",
        "sinks == nullptr ? nullptr : sinks + h * sink_stride",
        "nullptr",
        ATTENTION,
    ),
    Fault(
        "sink/mha-stride",
        "dense_mha and masked_mha take the sinks to be contiguous",
        "src/attention/paths/mha_steps.cpp",
        "call_.weights.sink.empty() ? 0 : call_.weights.sink.stride(0)",
        "1",
        ("sink_test",),
    ),
    Fault(
        "sink/mqa",
        "topk_mqa forgets it",
        "src/attention/paths/topk_mqa.cpp",
        "call_.weights.sink.empty() ? nullptr : memory_.sink.data()",
        "nullptr",
        ATTENTION,
    ),
    Fault(
        "sink/mqa-head",
        "topk_mqa uses the first head's sink for every head",
        "src/attention/mqa/cpu.cpp",
        "sink == nullptr ? nullptr : sink + h",
        "sink",
        ATTENTION,
    ),
    Fault(
        "sink/layer",
        "a layer does not hand its sink to attention",
        "src/layer/layer.cpp",
        "result.sink = weights_.sink.view_as<float>();",
        "",
        LAYER,
    ),
    # ---- skip the LSE rescale ----------------------------------------------------------------------------------------
    Fault(
        "lse-rescale/mha",
        "values accumulated under a smaller maximum keep their weight",
        "src/attention/mha/cpu.cpp",
        "slice_.accumulated.at(row, head_), rescale);",
        "slice_.accumulated.at(row, head_), 1.0F);",
        ATTENTION,
    ),
    Fault(
        "lse-rescale/mqa",
        "latents accumulated under a smaller maximum keep their weight",
        "src/attention/mqa/cpu.cpp",
        "scratch_.accumulated.data() + index * geometry_.kv_lora_rank, rescale);",
        "scratch_.accumulated.data() + index * geometry_.kv_lora_rank, 1.0F);",
        ATTENTION,
    ),
    Fault(
        "lse-rescale/sum",
        "the sum accumulated under a smaller maximum keeps its weight",
        "src/attention/merge.cpp",
        "state.sum = state.sum * rescale +",
        "state.sum = state.sum +",
        ATTENTION,
    ),
    # ---- read past the count -----------------------------------------------------------------------------------------
    Fault(
        "past-count/mask",
        "the column at the count is read",
        "src/attention/mha/bit_mask.cpp",
        "std::clamp<std::int64_t>(selection.count(token), 0, columns)",
        "std::clamp<std::int64_t>(selection.count(token) + std::int64_t{1}, 0, columns)",
        ATTENTION,
    ),
    Fault(
        "past-count/width",
        "a count above the width is believed",
        "src/attention/mha/bit_mask.cpp",
        "std::clamp<std::int64_t>(selection.count(token), 0, columns)",
        "std::max<std::int64_t>(selection.count(token), 0)",
        ATTENTION,
    ),
    Fault(
        "past-count/validate",
        "`validate` counts the entries past the count",
        "src/selection/validate.cpp",
        "return std::clamp<std::int64_t>(count, 0, width);",
        "return width;",
        ("validate_test",),
    ),
    # ---- pair the wrong rope dims ------------------------------------------------------------------------------------
    Fault(
        "rope-pairing/rotate",
        "interleaved and half-split pairs are exchanged",
        "src/layer/rope.cpp",
        "step = interleave ? 2 : 1;\n  const std::int64_t partner = interleave ? 1 : pairs;",
        "step = interleave ? 1 : 2;\n  const std::int64_t partner = interleave ? pairs : 1;",
        ("rope_test",),
    ),
    Fault(
        "rope-pairing/key",
        "rope keys are always half-split",
        "src/layer/layer.cpp",
        "rope_.rotate(head_dims(out.rope_key, 0, g.qk_rope_head_dim), config_.rope.interleave,",
        "rope_.rotate(head_dims(out.rope_key, 0, g.qk_rope_head_dim), false,",
        LAYER,
    ),
    Fault(
        "rope-pairing/query",
        "queries are always interleaved",
        "src/layer/layer.cpp",
        "rope_.rotate(head_dims(out.q, g.qk_nope_head_dim, g.qk_head_dim()), config_.rope.interleave,",
        "rope_.rotate(head_dims(out.q, g.qk_nope_head_dim, g.qk_head_dim()), true,",
        LAYER,
    ),
    Fault(
        "rope-pairing/index-key",
        "the indexer's keys are paired as the attention's",
        "src/layer/layer.cpp",
        "rope_.rotate(head_dims(out.index_key, 0, indexer.rope_dim), indexer.rope_interleave,",
        "rope_.rotate(head_dims(out.index_key, 0, indexer.rope_dim), config_.rope.interleave,",
        LAYER,
    ),
    Fault(
        "rope-pairing/index-query",
        "the indexer's queries are paired as the attention's",
        "src/layer/layer.cpp",
        "rope_.rotate(head_dims(out.index_query, 0, indexer.rope_dim), indexer.rope_interleave,",
        "rope_.rotate(head_dims(out.index_query, 0, indexer.rope_dim), config_.rope.interleave,",
        LAYER,
    ),
    # ---- use the wrong epsilon ---------------------------------------------------------------------------------------
    Fault(
        "epsilon/rms-norm",
        "it is added to the root instead of under it",
        "src/layer/norm.cpp",
        "std::sqrt(mean_square(row, n, 0.0) + epsilon)",
        "(std::sqrt(mean_square(row, n, 0.0)) + epsilon)",
        ("norm_test",),
    ),
    Fault(
        "epsilon/layer-norm",
        "the same in the indexer's norm",
        "src/layer/norm.cpp",
        "std::sqrt(mean_square(row, n, center) + epsilon)",
        "(std::sqrt(mean_square(row, n, center)) + epsilon)",
        ("norm_test",),
    ),
    Fault(
        "epsilon/latent",
        "the latent's norm uses the query's",
        "src/layer/layer.cpp",
        "config_.kv_a_norm_epsilon, threads_",
        "config_.q_a_norm_epsilon, threads_",
        LAYER,
    ),
    Fault(
        "epsilon/query",
        "the query's norm uses the latent's",
        "src/layer/layer.cpp",
        "config_.q_a_norm_epsilon, threads_",
        "config_.kv_a_norm_epsilon, threads_",
        LAYER,
    ),
    Fault(
        "epsilon/index-key",
        "the indexer's norm uses the latent's",
        "src/layer/layer.cpp",
        "indexer.key_norm_epsilon, threads_",
        "config_.kv_a_norm_epsilon, threads_",
        LAYER,
    ),
    Fault(
        "epsilon/config",
        "the latent's norm has the default whatever the model's file says",
        "src/geometry/parse_model_config.cpp",
        "config.kv_a_norm_epsilon = config.q_a_norm_epsilon;",
        "config.kv_a_norm_epsilon = kDefaultEpsilon;",
        ("model_config_test", "layer_recording_test"),
    ),
    # ---- merge without the empty case --------------------------------------------------------------------------------
    Fault(
        "empty-case/finish",
        "an empty row is looked for as in kernels whose maximum starts at minus infinity",
        "src/attention/merge.cpp",
        "if (state.sum == 0.0F) {",
        "if (std::isinf(state.max)) {",
        ATTENTION,
    ),
    Fault(
        "empty-case/lse",
        "the LSE of an empty row is the finite start of its maximum",
        "src/attention/merge.cpp",
        "lse = -std::numeric_limits<float>::infinity();",
        "lse = state.max;",
        ATTENTION,
    ),
    # ---- take the wrong scale group ----------------------------------------------------------------------------------
    Fault(
        "scale-group/read",
        "every group is read with the first group's scale",
        "src/cache/row_codec.cpp",
        "std::memcpy(&scale, row + kScaleOffset + group * 4, sizeof scale);",
        "std::memcpy(&scale, row + kScaleOffset, sizeof scale);",
        ATTENTION,
    ),
    Fault(
        "scale-group/write",
        "every group's scale is that of the first group's values",
        "src/cache/row_codec.cpp",
        "std::max(largest, std::abs(values[i]))",
        "std::max(largest, std::abs(latent[i]))",
        ("cache_test",),
    ),
    # ---- let a tile span requests ------------------------------------------------------------------------------------
    Fault(
        "tile-across-requests/mqa-rows",
        "a request's last tile is filled up with the next request's rows",
        "src/attention/paths/topk_mqa.cpp",
        "std::min(rows.end, (position / memory_.tile_rows + 1) * memory_.tile_rows)",
        "(position / memory_.tile_rows + 1) * memory_.tile_rows",
        ATTENTION,
    ),
    Fault(
        "tile-across-requests/mqa-products",
        "tiles make one product though other requests' tokens lie between theirs",
        "src/attention/paths/topk_mqa.cpp",
        "t < tiles_ && memory_.tiles[static_cast<std::size_t>(t)].token == first.token + rows",
        "t < tiles_",
        ATTENTION,
    ),
    Fault(
        "tile-across-requests/mha-rows",
        "a request's last query tile is filled up with the next request's rows",
        "src/attention/mha/cpu.cpp",
        "rows_(std::min(kQueryTile, slice.q.dim(0) - first_row))",
        "rows_(kQueryTile)",
        ATTENTION,
    ),
    Fault(
        "tile-across-requests/mha-keys",
        "a request's last key tile is full, with what another left in the workspace",
        "src/attention/mha/cpu.cpp",
        "std::min(kKeyTile, keys_.count - tile * kKeyTile)",
        "kKeyTile",
        ATTENTION,
    ),
    Fault(
        "tile-across-requests/page-map",
        "a thread keeps the page map of the request before",
        "src/attention/mha/bit_mask.cpp",
        "if (map.request == request.number) {",
        "if (map.request >= 0) {",
        ("slot_edge_test",),
    ),
    Fault(
        "tile-across-requests/indexer",
        "the last rows of a request are scored together with the next request's first",
        "src/selection/select.cpp",
        "std::min(at_once, rows[b].end - row)}",
        "at_once}",
        ("select_test",),
    ),
    # ---- do not select the tail --------------------------------------------------------------------------------------
    Fault(
        "tail/dropped",
        "rows that choose pools do not select the incomplete one",
        "src/selection/kpool.cpp",
        "if (candidates.tail) {",
        "if (candidates.tail && chosen.empty()) {",
        ("select_test",),
    ),
    Fault(
        "tail/own-token",
        "the tail ends before the row's own token",
        "src/selection/kpool.cpp",
        "append(candidates.among(position + 1) * candidates.pool, position + 1);",
        "append(candidates.among(position + 1) * candidates.pool, position);",
        ("select_test",),
    ),
    Fault(
        "tail/coverage",
        "a rule without a tail is held to cover the incomplete pool",
        "src/selection/rule.cpp",
        "keys / pool_ <= topk_ / pool_ && (tail_ || keys % pool_ == 0);",
        "keys / pool_ <= topk_ / pool_;",
        ("selection_rule_test",),
    ),
    Fault(
        "tail/prefix",
        "a rule with a tail is not held to cover the incomplete pool after its budget",
        "src/selection/rule.cpp",
        "topk_ + pool_ - 1 : 0;",
        "topk_ : 0;",
        ("selection_rule_test",),
    ),
    Fault(
        "tail/generator",
        "the `pooled` generator leaves it out",
        "src/selection/generators.cpp",
        "writer.append(keys / unit * unit, keys);",
        "",
        ("generators_test",),
    ),
    Fault(
        "tail/config",
        "a model whose file does not say has none",
        "src/geometry/config_indexer.cpp",
        "constexpr bool kDefaultTail = true;",
        "constexpr bool kDefaultTail = false;",
        ("config_layers_test",),
    ),
    # ---- clip planned rows wrongly at other lengths ------------------------------------------------------------------
    Fault(
        "clip/below-the-first",
        "rows that shorter lengths move below the first segment belong to none",
        "src/attention/segments.h",
        "number == 0 ? context_len : std::max(segment.begin, context_len)",
        "std::max(segment.begin, context_len)",
        REFRESH,
    ),
    Fault(
        "clip/begin",
        "a later segment keeps its first row where that has become context",
        "src/attention/segments.h",
        "number == 0 ? context_len : std::max(segment.begin, context_len)",
        "number == 0 ? context_len : segment.begin",
        REFRESH,
    ),
    Fault(
        "clip/end",
        "a segment keeps its last row where the request ends before it",
        "src/attention/segments.h",
        "segment.end = std::min(segment.end, seq_len);",
        "segment.end = std::max(segment.end, seq_len);",
        REFRESH,
    ),
    Fault(
        "clip/query-len",
        "a refresh takes more query tokens than were planned",
        "src/routing/refresh.cpp",
        "made_for.query_len, now.query_len);",
        "made_for.context_len + made_for.query_len, now.query_len);",
        REFRESH,
    ),
    Fault(
        "clip/seq-len",
        "a refresh takes more keys than were planned",
        "src/routing/refresh.cpp",
        "expect(\"seq_len_bound\", \"keys\", made_for.context_len + made_for.query_len,",
        "expect(\"seq_len_bound\", \"keys\", now.context_len + made_for.query_len,",
        REFRESH,
    ),
    Fault(
        "clip/latest",
        "a refresh is bounded by the one before, not by the plan",
        "src/routing/refresh.cpp",
        "router.refresh(made_for_[b], later",
        "router.refresh(requests_[b], later",
        REFRESH,
    ),
    Fault(
        "clip/unmet",
        "rows that dense_mha no longer serves at the new lengths stay there",
        "src/routing/refresh.cpp",
        "if (!option.can_run) {",
        "if (segment.path != Path::dense_mha && !option.can_run) {",
        REFRESH,
    ),
    # ---- continue a product wrongly in the next part -----------------------------------------------------------------
    Fault(
        "parts/left",
        "every part of K begins at the first column of a",
        "src/device/matmul.cpp",
        "a_.at(rows.begin, depth.begin)",
        "a_.at(rows.begin, 0)",
        ("matmul_test",),
    ),
    Fault(
        "parts/copied",
        "the same for rows that are widened or padded",
        "src/device/matmul.cpp",
        "a_.at(rows.begin + some.begin + r, depth.begin)",
        "a_.at(rows.begin + some.begin + r, 0)",
        ("matmul_test",),
    ),
    Fault(
        "parts/right",
        "every part of K is multiplied with the first panel",
        "src/device/matmul.cpp",
        "Arithmetic::pack(b_, depth.begin, depth.count,",
        "Arithmetic::pack(b_, 0, depth.count,",
        ("matmul_test",),
    ),
    Fault(
        "parts/rows",
        "copied rows are all added to the first ones' sums",
        "src/device/matmul.cpp",
        "sums + some.begin * ld",
        "sums",
        ("matmul_test",),
    ),
    # ---- take a selection in the other space -------------------------------------------------------------------------
    Fault(
        "space/unread",
        "the space of a selection that nothing reads is not checked",
        "src/attention/attend.cpp",
        "if (selection.space != plan.attention().space) {",
        "if (!selection.index.empty() && selection.space != plan.attention().space) {",
        ("paths_edge_test",),
    ),
    Fault(
        "space/entries",
        "entries are always positions",
        "src/attention/mha/bit_mask.cpp",
        "if (attention_.space == SelectionSpace::request_position) {\n    return entry",
        "if (entry <= row_position) {\n    return entry",
        ATTENTION,
    ),
)
