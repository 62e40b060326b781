# SPDX-License-Identifier: Apache-2.0
"""Random layers to measure on, and what is right for them in float64."""

import dataclasses
import functools
import math

import torch

import headrace
from headrace import _bench

PAGE_SIZE = 64
RANK = 512
TOPK, POOL = 2048, 4  # of the models' indexers
TOLERANCE = 2e-2


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    seq: int  #: new tokens of each request
    heads: int
    qk: int
    v: int
    context: int = 0  #: keys before them

    @property
    def nope(self):
        """256 is a NoPE layer (GLM-5.3-Flash); 192 has a rope key of 64."""
        return self.qk if self.qk == self.v else self.v

    @property
    def rope(self):
        return self.qk - self.nope

    @property
    def tokens(self):
        return self.batch * self.seq

    @property
    def keys(self):
        """Of each request."""
        return self.context + self.seq

    @property
    def flops(self):
        """Of causal attention to every key, without a context."""
        return self.batch * self.heads * self.seq**2 / 2 * 2 * (self.qk + self.v)

    def __str__(self):
        context = f" + {self.context}" if self.context else ""
        return f"{self.batch} x {self.seq}{context}, {self.heads} heads, {self.qk}/{self.v}"


@functools.lru_cache(maxsize=1)
def select(selection, topk, seed, batch, seq, context):
    """A generator's selection for each row of some requests, and how many of its columns count."""
    index = torch.empty(batch * seq, _bench.selection_width(selection, topk), dtype=torch.int32)
    count = torch.empty(batch * seq, dtype=torch.int32)
    for b in range(batch):
        rows = slice(b * seq, (b + 1) * seq)
        _bench.fill_selection(selection, topk, seed, b, context, index[rows], count[rows])
    return index, count


class Problem:
    """Queries, the latent cache, what peers read in their places, and perhaps a selection."""

    def __init__(self, shape, device, *, rule="none", selection=None, topk=2048, seed=1):
        """selection: a generator such as "drift:0.9" """
        self.shape = shape
        self.device = device
        self.attention = dict(
            num_heads=shape.heads,
            kv_lora_rank=RANK,
            qk_nope_head_dim=shape.nope,
            qk_rope_head_dim=shape.rope,
            v_head_dim=shape.v,
            scale=1 / math.sqrt(shape.qk),
            rule=rule,
        )
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*size, scale=1.0):
            values = torch.randn(size, generator=generator, device=device, dtype=torch.float32)
            return (values * scale).to(torch.bfloat16)

        s = shape
        self.q = normal(s.tokens, s.heads, s.qk)
        self.kv_b_proj = normal(s.heads * (s.nope + s.v), RANK, scale=1 / math.sqrt(RANK))
        self.latent = normal(s.batch * s.keys, RANK)
        self.rope_key = normal(s.batch * s.keys, s.rope)
        self.out = torch.empty(s.tokens, s.heads, s.v, dtype=torch.bfloat16, device=device)
        self._page()
        lengths = torch.arange(s.batch + 1, dtype=torch.int32) * s.seq
        self.query_start = lengths.to(device)
        self.seq_len = torch.full((s.batch,), s.keys, dtype=torch.int32, device=device)
        self.index = self.count = None
        if selection:
            self.index, self.count = (x.to(device) for x in select(selection, topk, seed, s.batch, s.seq, s.context))

    def _page(self):
        """The cache, in pages that lie in no order."""
        s = self.shape
        pages = -(-s.keys // PAGE_SIZE)
        order = torch.randperm(s.batch * pages, generator=torch.Generator().manual_seed(2), dtype=torch.int32)
        self.block_table = order.view(s.batch, pages).to(self.device)
        rows = self.keys.view(s.batch, s.keys, -1)
        rows = torch.nn.functional.pad(rows, (0, 0, 0, pages * PAGE_SIZE - s.keys))
        self.cache = torch.empty(s.batch * pages, PAGE_SIZE, RANK + s.rope, dtype=torch.bfloat16, device=self.device)
        self.cache[self.block_table.long().flatten()] = rows.view(-1, PAGE_SIZE, RANK + s.rope)

    @property
    def query_len(self):
        return [self.shape.seq] * self.shape.batch

    @property
    def seq_lens(self):
        return [self.shape.keys] * self.shape.batch

    @functools.cached_property
    def keys(self):
        """Rows of the cache, one request after the other: [keys, R + rope]."""
        return torch.cat([self.latent, self.rope_key], 1)

    @functools.cached_property
    def flat_index(self):
        """The selection as rows of `keys`; -1 is none."""
        first = torch.arange(self.shape.batch, dtype=torch.int32, device=self.device) * self.shape.keys
        moved = self.index + first.repeat_interleave(self.shape.seq)[:, None]
        return torch.where(self.index < 0, -1, moved)

    @property
    def _weights(self):
        return self.kv_b_proj.view(self.shape.heads, self.shape.nope + self.shape.v, RANK)

    def absorb(self):
        """Queries without their rope part in the latents' space: [tokens, heads, R]."""
        nope = self.shape.nope
        return torch.bmm(self.q[..., :nope].transpose(0, 1), self._weights[:, :nope]).transpose(0, 1)

    def project(self, latents):
        """What was attended to, [tokens, heads, R], as values: [tokens, heads, v]."""
        weights = self._weights[:, self.shape.nope :].transpose(1, 2)
        return torch.bmm(latents.transpose(0, 1), weights).transpose(0, 1)

    @functools.cached_property
    def absorbed_query(self):
        """[tokens, heads, R + rope]."""
        return torch.cat([self.absorb(), self.q[..., self.shape.nope :]], 2)

    def up_projection(self):
        """K_nope and V as the up-projection leaves them: [tokens, heads, nope + v]."""
        s = self.shape
        return (self.latent @ self.kv_b_proj.T).view(-1, s.heads, s.nope + s.v)

    @functools.cached_property
    def up(self):
        """The same, computed once."""
        return self.up_projection()

    @functools.cached_property
    def qkv(self):
        """Queries, keys and values as frameworks want them, each contiguous: [batch, seq or keys, heads, dim]."""
        s = self.shape
        rope = self.rope_key[:, None, :].expand(-1, s.heads, -1)
        k = torch.cat([self.up[..., : s.nope], rope], dim=2)
        v = self.up[..., s.nope :].contiguous()
        return tuple(x.view(s.batch, -1, s.heads, x.shape[2]) for x in (self.q, k, v))

    def attend(self, device, force=None, selected=True):
        """`headrace.attend` on a plan of this problem, as a call without arguments; and the plan."""
        plan = headrace.plan(self.query_len, self.seq_lens, exact=True, device=device, force=force, **self.attention)
        plan.upload(torch.empty(plan.table_bytes, dtype=torch.uint8, device=self.device))
        workspace = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8, device=self.device)
        workspace = workspace[-workspace.data_ptr() % 256 :]

        def run():
            headrace.attend(
                plan,
                q=self.q,
                kv_b_proj=self.kv_b_proj,
                cache=self.cache,
                block_table=self.block_table,
                query_start=self.query_start,
                seq_len=self.seq_len,
                index=self.index if selected else None,
                count=self.count if selected else None,
                out=self.out,
                workspace=workspace,
            )
            return self.out

        return run, plan

    def sampled_rows(self, count=24):
        """Query tokens to look at: the ends of the first and the last request, and some others."""
        s = self.shape
        picked = torch.randint(s.tokens, (count,), generator=torch.Generator().manual_seed(3)).tolist()
        return sorted({0, s.seq // 2, s.seq - 1, s.tokens - s.seq, s.tokens - 1, *picked})

    def reference(self, rows, selected=True):
        """Attention of some query tokens in float64, from the latents: [rows, heads, v]."""
        s = self.shape
        weights = self._weights.double()
        result = []
        for t in rows:
            first = t // s.seq * s.keys
            keys = torch.arange(first, first + s.context + t % s.seq + 1, device=self.device)
            if selected and self.index is not None:
                keys = first + self.index[t, : int(self.count[t])].long()
            q, latent = self.q[t].double(), self.latent[keys].double()
            absorbed = torch.einsum("hd,hdr->hr", q[:, : s.nope], weights[:, : s.nope])
            scores = absorbed @ latent.T + q[:, s.nope :] @ self.rope_key[keys].double().T
            weight = torch.softmax(scores * self.attention["scale"], dim=1)
            result.append(torch.einsum("hr,hvr->hv", weight @ latent, weights[:, s.nope :]))
        return torch.stack(result)


def worst_row(actual, expected):
    """The relative error of the worst row. NaN where there is one."""
    difference = (actual.double() - expected).flatten(1).norm(dim=1)
    return float((difference / expected.flatten(1).norm(dim=1)).max())
