// SPDX-License-Identifier: Apache-2.0
#include "capi/attention.h"

#include <cstddef>

#include "capi/handles.h"
#include "capi/names.h"
#include "capi/structs.h"
#include "headrace/error.h"

namespace headrace::capi {
namespace {

SelectionRule make_rule(const HrAttention& attention) {
  const SelectionRule::Kind kind = rule_of("attention.rule", attention.rule);
  if (kind != SelectionRule::Kind::kpool) {
    expect_unused("attention.pool", attention.pool, "rules but HR_RULE_KPOOL");
    expect_unused("attention.tail", attention.tail, "rules but HR_RULE_KPOOL");
  }
  if (kind == SelectionRule::Kind::none) {
    expect_unused("attention.topk", attention.topk, "HR_RULE_NONE");
  }
  switch (kind) {
    case SelectionRule::Kind::none:
      break;
    case SelectionRule::Kind::lightning:
      return SelectionRule::lightning(attention.topk);
    case SelectionRule::Kind::kpool:
      return SelectionRule::kpool(attention.topk, attention.pool, flag("attention.tail", attention.tail));
    case SelectionRule::Kind::opaque:
      if (attention.topk < 0) {
        throw Error("topk", "at least 0", std::to_string(attention.topk));
      }
      return SelectionRule::opaque(attention.topk);
  }
  return SelectionRule::none();
}

}  // namespace

Attention attention_of(const HrAttention* attention) {
  const HrAttention from = read_struct("attention", attention);
  expect_reserved("attention.reserved", from.reserved);
  Attention result{.geometry = {.num_heads = from.num_heads,
                                .kv_lora_rank = from.kv_lora_rank,
                                .qk_nope_head_dim = from.qk_nope_head_dim,
                                .qk_rope_head_dim = from.qk_rope_head_dim,
                                .v_head_dim = from.v_head_dim},
                   .rule = make_rule(from),
                   .scale = from.scale,
                   .compute = dtype_of("attention.compute", from.compute),
                   .format = format_of("attention.format", from.format),
                   .space = space_of("attention.space", from.space)};
  result.validate();
  return result;
}

Batch batch_of(const HrBatch* batch) {
  const HrBatch from = read_struct("batch", batch);
  expect_reserved("batch.reserved", from.reserved);
  if (from.requests < 0) {
    throw Error("batch.requests", "at least 0", std::to_string(from.requests));
  }
  if (from.requests > 0) {
    static_cast<void>(required("batch.query_len", from.query_len));
    static_cast<void>(required("batch.seq_len_bound", from.seq_len_bound));
  }
  const auto count = static_cast<std::size_t>(from.requests);
  return {.query_len = {from.query_len, count},
          .seq_len_bound = {from.seq_len_bound, count},
          .exact = flag("batch.exact", from.exact)};
}

Limits limits_of(const HrLimits* limits) {
  Limits result;
  if (limits == nullptr) {
    return result;
  }
  const HrLimits from = read_struct("limits", limits);
  if (from.workspace_bytes < 0) {
    throw Error("limits.workspace_bytes", "at least 0", std::to_string(from.workspace_bytes));
  }
  if (from.workspace_bytes > 0) {
    result.workspace_bytes = from.workspace_bytes;
  }
  result.device.threads = threads_of("limits.threads", from.threads);
  if (from.device != nullptr) {
    result.device.cuda = from.device->cuda;
  }
  result.max_tokens = from.max_tokens;
  result.max_seq_len = from.max_seq_len;
  result.max_requests = from.max_requests;
  return result;
}

Hints hints_of(const HrHints* hints) {
  Hints result;
  if (hints == nullptr) {
    return result;
  }
  const HrHints from = read_struct("hints", hints);
  expect_reserved("hints.reserved", from.reserved);
  if (from.force != 0) {
    result.force = path_of("force", from.force);
  }
  return result;
}

int threads_of(const std::string& argument, std::int64_t threads) {
  if (threads < 0 || threads > kMaxThreads) {
    throw Error(argument, "a number in [0, " + std::to_string(kMaxThreads) + "], 0 for all of the machine's",
                std::to_string(threads));
  }
  return static_cast<int>(threads);
}

}  // namespace headrace::capi
