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
TOLERANCE = 2e-2


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    seq: int
    heads: int
    qk: int
    v: int

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
    def flops(self):
        """Of causal attention to every key."""
        return self.batch * self.heads * self.seq**2 / 2 * 2 * (self.qk + self.v)

    def __str__(self):
        return f"{self.batch} x {self.seq}, {self.heads} heads, {self.qk}/{self.v}"


class Problem:
    """Requests of new tokens only: queries, the latent cache, its up-projection for peers, and perhaps a selection."""

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
        self.latent = normal(s.tokens, RANK)
        self.rope_key = normal(s.tokens, s.rope)
        self.out = torch.empty(s.tokens, s.heads, s.v, dtype=torch.bfloat16, device=device)
        self._page()
        lengths = torch.arange(s.batch + 1, dtype=torch.int32) * s.seq
        self.query_start = lengths.to(device)
        self.seq_len = torch.full((s.batch,), s.seq, dtype=torch.int32, device=device)
        self.index = self.count = None
        if selection:
            self._select(selection, topk, seed)

    def _page(self):
        """The cache, in pages that lie in no order."""
        s = self.shape
        pages = -(-s.seq // PAGE_SIZE)
        order = torch.randperm(s.batch * pages, generator=torch.Generator().manual_seed(2), dtype=torch.int32)
        self.block_table = order.view(s.batch, pages).to(self.device)
        rows = torch.cat([self.latent, self.rope_key], 1).view(s.batch, s.seq, -1)
        rows = torch.nn.functional.pad(rows, (0, 0, 0, pages * PAGE_SIZE - s.seq))
        self.cache = torch.empty(s.batch * pages, PAGE_SIZE, RANK + s.rope, dtype=torch.bfloat16, device=self.device)
        self.cache[self.block_table.long().flatten()] = rows.view(-1, PAGE_SIZE, RANK + s.rope)

    def _select(self, selection, topk, seed):
        s = self.shape
        index = torch.empty(s.tokens, _bench.selection_width(selection, topk), dtype=torch.int32)
        count = torch.empty(s.tokens, dtype=torch.int32)
        for b in range(s.batch):
            rows = slice(b * s.seq, (b + 1) * s.seq)
            _bench.fill_selection(selection, topk, seed, b, 0, index[rows], count[rows])
        self.index, self.count = index.to(self.device), count.to(self.device)

    @property
    def lengths(self):
        return [self.shape.seq] * self.shape.batch

    def up_projection(self):
        """K_nope and V as the up-projection leaves them: [tokens, heads, nope + v]."""
        s = self.shape
        return (self.latent @ self.kv_b_proj.T).view(s.tokens, s.heads, s.nope + s.v)

    @functools.cached_property
    def up(self):
        """The same, computed once."""
        return self.up_projection()

    @functools.cached_property
    def qkv(self):
        """Queries, keys and values as frameworks want them, each contiguous: [batch, seq, heads, dim]."""
        s = self.shape
        rope = self.rope_key[:, None, :].expand(-1, s.heads, -1)
        k = torch.cat([self.up[..., : s.nope], rope], dim=2)
        v = self.up[..., s.nope :].contiguous()
        return tuple(x.view(s.batch, s.seq, s.heads, -1) for x in (self.q, k, v))

    def attend(self, device, force=None, selected=True):
        """`headrace.attend` on a plan of this problem, as a call without arguments; and the plan."""
        plan = headrace.plan(self.lengths, self.lengths, exact=True, device=device, force=force, **self.attention)
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
        weights = self.kv_b_proj.double().view(s.heads, s.nope + s.v, RANK)
        result = []
        for t in rows:
            first = t // s.seq * s.seq
            keys = torch.arange(first, t + 1, device=self.device)
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
