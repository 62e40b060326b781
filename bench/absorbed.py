# SPDX-License-Identifier: Apache-2.0
"""Contenders between absorbed queries and attended latents: top-k MQA without its absorption and its projection. What
they return is [tokens, heads, R]; it is projected only to be checked."""

import inspect

import torch

from contenders import import_module
from headrace import _bench

HOPPER_HEADS = 64  # FlashMLA's sparse prefill takes 64 or 128
INDEX_MULTIPLE = 128
NOTHING = torch.iinfo(torch.int32).max


def packed(device):
    """Ours: union lists, their masks, and the kernel."""

    def make(problem):
        if device is None or not _bench.HAS_KERNELS:
            raise NotImplementedError("takes a GPU")
        rank = problem.latent.shape[1]
        mqa = _bench.Mqa(problem.query_len, problem.seq_lens, device=device, **problem.attention)
        query, rope = problem.absorbed_query.split([rank, problem.shape.rope], dim=2)
        out = torch.empty(query.shape, dtype=torch.bfloat16, device=problem.device)
        arguments = dict(query=query.contiguous(), cache=problem.cache, block_table=problem.block_table, out=out)
        arguments.update(index=problem.index, count=problem.count, query_rope=rope if problem.shape.rope else None)

        def run():
            mqa.run(**arguments)
            return out

        return run, problem.project

    return make


def _sparse_forward(scale):
    """FlashMLA's sparse prefill as (queries, keys, index [rows, 1, width], lengths) -> latents."""
    function = import_module("flash_mla").flash_mla_sparse_fwd
    options = {"use_legacy": True} if "use_legacy" in inspect.signature(function).parameters else {}  # Hopper's kernel
    return lambda q, keys, index, length: function(q, keys, index, scale, topk_length=length, **options)[0]


def _widened(index):
    """An index of the width that FlashMLA takes."""
    return torch.nn.functional.pad(index, (0, -index.shape[1] % INDEX_MULTIPLE), value=-1)[:, None].contiguous()


def _padded_heads(heads):
    return HOPPER_HEADS if heads <= HOPPER_HEADS else 2 * HOPPER_HEADS


def flash_mla(problem):
    """FlashMLA's sparse prefill, its heads padded to 64, with lengths."""
    forward = _sparse_forward(problem.attention["scale"])
    heads = problem.shape.heads
    q = torch.nn.functional.pad(problem.absorbed_query, (0, 0, 0, _padded_heads(heads) - heads))
    keys, index = problem.keys[:, None], _widened(problem.flat_index)
    return lambda: forward(q, keys, index, problem.count), lambda out: problem.project(out[:, :heads])


def flash_mla_and_projections(problem):
    """The same from queries to output: absorption, padding and projection as PyTorch does them."""
    forward = _sparse_forward(problem.attention["scale"])
    s, rank = problem.shape, problem.latent.shape[1]
    keys, index = problem.keys[:, None], _widened(problem.flat_index)
    q = torch.zeros(s.tokens, _padded_heads(s.heads), rank + s.rope, dtype=torch.bfloat16, device=problem.device)

    def run():
        q[:, : s.heads, :rank] = problem.absorb()
        q[:, : s.heads, rank:] = problem.q[..., s.nope :]
        return problem.project(forward(q, keys, index, problem.count)[:, : s.heads])

    return run, lambda out: out


def unions(index, group):
    """Of every `group` neighbouring rows of an index (-1: none) the union, ascending, and its size."""
    rows = torch.where(index < 0, NOTHING, index).view(-1, group * index.shape[1]).sort(dim=1)[0]
    repeated = torch.zeros_like(rows, dtype=torch.bool)
    repeated[:, 1:] = rows[:, 1:] == rows[:, :-1]
    rows = rows.masked_fill_(repeated, NOTHING).sort(dim=1)[0]
    length = (rows != NOTHING).sum(dim=1, dtype=torch.int32)
    rows = rows[:, : int(length.max())]
    return torch.where(rows == NOTHING, -1, rows), length


def _union_rows(shape):
    """Queries whose heads fill a tile of FlashMLA's; none where they do not fill it, or one does."""
    group = HOPPER_HEADS // shape.heads
    return group if group > 1 and HOPPER_HEADS % shape.heads == 0 and shape.seq % group == 0 else None


def mean_union(problem):
    """Keys that 64 / heads neighbouring queries select together, on average."""
    group = _union_rows(problem.shape)
    return float(unions(problem.flat_index, group)[1].float().mean()) if group else None


def union_fed(problem):
    """A floor for packing: FlashMLA given the union of 64 / heads queries' selections as if all of them attended to all
    of it. No row masks, no time for the lists; what comes out is not the layer's answer."""
    forward = _sparse_forward(problem.attention["scale"])
    group = _union_rows(problem.shape)
    if group is None:
        raise NotImplementedError("packs whole groups of 64 / heads queries, two at least")
    index, length = unions(problem.flat_index, group)
    index = _widened(index)
    q = problem.absorbed_query.view(len(length), HOPPER_HEADS, -1)
    keys = problem.keys[:, None]
    return lambda: forward(q, keys, index, length), lambda out: out


def fa3_absorbed(problem):
    """FlashAttention-3 over a cache of pages of one token: each query is a request, its selection the page table."""
    function = import_module("flash_attn_interface").flash_attn_with_kvcache
    s, rank = problem.shape, problem.latent.shape[1]
    if s.rope != 64:
        raise NotImplementedError("takes a rope key of 64")
    latent, rope = (x[:, None, None] for x in problem.keys.split([rank, s.rope], dim=1))
    query, query_rope = (x[:, None] for x in problem.absorbed_query.split([rank, s.rope], dim=2))
    arguments = dict(qv=query, cache_seqlens=problem.count, page_table=problem.flat_index.clamp(min=0))
    arguments.update(softmax_scale=problem.attention["scale"], num_splits=1)
    return lambda: function(query_rope, rope, latent, **arguments), lambda out: problem.project(out[:, 0])


def triton(union):
    """SGLang's Triton kernel: a program a token, or a group of `union` tokens, its lists included."""

    def make(problem):
        function = import_module("triton_sparse_mla_prefill").sparse_mla_prefill
        s = problem.shape
        if s.rope != 64:
            raise NotImplementedError("takes a rope key of 64")
        if s.heads > 32 or (union and union * s.heads not in (16, 32)):
            raise NotImplementedError("takes 32 heads at most, and unions of 16 or 32 rows")
        q, keys, index, scale = problem.absorbed_query, problem.keys, problem.flat_index, problem.attention["scale"]
        if union and index.shape[1] & (index.shape[1] - 1):
            raise NotImplementedError("takes an index whose width is a power of two")
        return lambda: function(q, keys, index, scale, topk_length=problem.count, union=union), problem.project

    return make


#: Peers on the same queries, keys and selection.
PEERS = {
    "flash_mla": flash_mla,
    "flash_attn 3 absorbed": fa3_absorbed,
    "triton": triton(0),
    "triton union 2": triton(2),
    "triton union 4": triton(4),
}
