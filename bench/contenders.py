# SPDX-License-Identifier: Apache-2.0
"""Who is measured. A contender is a function of a Problem that gives a call without arguments, and a function that
makes [tokens, heads, v] of what the call returns; it raises where it cannot serve the problem or is not installed."""

import importlib

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from headrace import _bench


def import_module(name):
    try:
        return importlib.import_module(name)
    except Exception as error:  # what is installed may still not load
        raise NotImplementedError(f"{name} cannot be imported: {_first_line(error)}") from None


def _first_line(error):
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _as_it_is(out):
    return out


def _by_tokens(problem):
    """From [batch, seq, heads, v]."""
    return lambda out: (out[0] if isinstance(out, tuple) else out).reshape(problem.out.shape)


def attend(device, force=None, selected=True):
    """Ours, from query and cache to output."""

    def make(problem):
        run, _ = problem.attend(device, force, selected)
        return run, _as_it_is

    return make


def kernel(device, masked=False):
    """Our flash-attention kernel alone, on the windows that the up-projection leaves; masked: with the mask built."""

    def make(problem):
        if device is None or not _bench.HAS_KERNELS:
            raise NotImplementedError("takes a GPU")
        s = problem.shape
        mha = _bench.Mha(problem.query_len, problem.seq_lens, device=device, masked=masked, **problem.attention)
        up = problem.up
        arguments = dict(q=problem.q, key_nope=up[..., : s.nope], value=up[..., s.nope :], out=problem.out)
        if s.rope:
            arguments["key_rope"] = problem.rope_key
        if masked:
            arguments.update(index=problem.index, count=problem.count)

        def run():
            mha.run(**arguments)
            return problem.out

        return run, _as_it_is

    return make


def _sdpa(backend, problem, q, k, v):
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=problem.attention["scale"]
        )


def sdpa(backend):
    """PyTorch's attention on one of its backends."""

    def make(problem):
        q, k, v = (x.transpose(1, 2) for x in problem.qkv)
        by_tokens = _by_tokens(problem)
        return lambda: _sdpa(backend, problem, q, k, v), lambda out: by_tokens(out.transpose(1, 2))

    return make


def project_and_sdpa(backend):
    """The up-projection as a matrix product of PyTorch's, then its attention: from query and latent to output."""

    def make(problem):
        s = problem.shape
        if s.rope:
            raise NotImplementedError("written for NoPE layers")
        by_tokens = _by_tokens(problem)
        q = problem.q.view(s.batch, s.seq, s.heads, s.qk).transpose(1, 2)

        def run():
            up = problem.up_projection().view(s.batch, s.seq, s.heads, -1).transpose(1, 2)
            return _sdpa(backend, problem, q, up[..., : s.nope], up[..., s.nope :])

        return run, lambda out: by_tokens(out.transpose(1, 2))

    return make


def flash_attention(module):
    """flash_attn (FlashAttention-2) or flash_attn_interface (FlashAttention-3)."""

    def make(problem):
        function = import_module(module).flash_attn_func
        q, k, v = problem.qkv
        scale = problem.attention["scale"]
        return lambda: function(q, k, v, softmax_scale=scale, causal=True), _by_tokens(problem)

    return make


def flashinfer(problem):
    """FlashInfer's prefill over keys and values of varying lengths."""
    prefill = import_module("flashinfer.prefill")
    s = problem.shape
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=problem.device)
    wrapper = prefill.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        problem.query_start,
        problem.query_start,
        s.heads,
        s.heads,
        s.qk,
        head_dim_vo=s.v,
        causal=True,
        sm_scale=problem.attention["scale"],
        q_data_type=torch.bfloat16,
    )
    q, k, v = (x.reshape(s.tokens, s.heads, -1) for x in problem.qkv)
    return lambda: wrapper.run(q, k, v), _as_it_is


CUDNN, FLASH = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION

#: Peers that compute dense causal attention from queries, keys and values.
DENSE_PEERS = {
    "cuDNN": sdpa(CUDNN),
    "torch flash": sdpa(FLASH),
    "flash_attn 2": flash_attention("flash_attn"),
    "flash_attn 3": flash_attention("flash_attn_interface"),
    "flashinfer": flashinfer,
}
