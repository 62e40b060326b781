# SPDX-License-Identifier: Apache-2.0
"""For bench/peers.py: python/bench_api.h. Not part of the package's interface."""

import ctypes
import weakref
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint64, c_void_p

from ._library import FAILURE, HrAttention, HrBatch, HrTensor, declare, library
from ._plan import Attention, stream_handle, to_c_batch
from ._tensors import Borrowed


class HrMhaCall(ctypes.Structure):
    _fields_ = [
        ("q", HrTensor),
        ("key_nope", HrTensor),
        ("key_rope", HrTensor),
        ("value", HrTensor),
        ("index", HrTensor),
        ("count", HrTensor),
        ("out", HrTensor),
        ("lse", HrTensor),
        ("stream", c_int64),
    ]


class HrMqaCall(ctypes.Structure):
    _fields_ = [
        ("query", HrTensor),
        ("query_rope", HrTensor),
        ("cache", HrTensor),
        ("block_table", HrTensor),
        ("index", HrTensor),
        ("count", HrTensor),
        ("out", HrTensor),
        ("stream", c_int64),
    ]


_SELECTION_FUNCTIONS = {
    "hr_selection_width": (FAILURE, [c_char_p, c_int64, POINTER(c_int64)]),
    "hr_fill_selection": (FAILURE, [c_char_p, c_int64, c_uint64, c_int64, c_int64, HrTensor, HrTensor]),
}
_KERNEL_FUNCTIONS = {
    "hr_mha_create": (FAILURE, [POINTER(HrAttention), POINTER(HrBatch), c_void_p, c_int32, POINTER(c_void_p)]),
    "hr_mha_run": (FAILURE, [c_void_p, POINTER(HrMhaCall)]),
    "hr_mha_free": (None, [c_void_p]),
    "hr_mqa_create": (FAILURE, [POINTER(HrAttention), POINTER(HrBatch), c_void_p, POINTER(c_void_p)]),
    "hr_mqa_run": (FAILURE, [c_void_p, POINTER(HrMqaCall)]),
    "hr_mqa_free": (None, [c_void_p]),
}

declare(library, _SELECTION_FUNCTIONS)
#: Whether the library was built with CUDA.
HAS_KERNELS = hasattr(library, "hr_mha_create")
if HAS_KERNELS:
    declare(library, _KERNEL_FUNCTIONS)


def selection_width(generator, topk):
    """Columns that a row of the generator ("uniform", "drift:0.9", "pooled:4:0.9", "local") may need."""
    width = c_int64()
    library.hr_selection_width(generator.encode(), topk, width)
    return width.value


def fill_selection(generator, topk, seed, request, context_len, index, count):
    """Fills the rows of a request in the processor's memory: index [query_len, width], count [query_len], int32."""
    borrow = Borrowed()
    library.hr_fill_selection(
        generator.encode(), topk, seed, request, context_len, borrow("index", index), borrow("count", count)
    )


class _Kernel:
    """A kernel on a batch's tables, which it was made with."""

    def __init__(self, create, free, device, *arguments):
        handle = c_void_p()
        create(*arguments, handle)
        self._device = device
        self._handle = handle.value
        weakref.finalize(self, free, self._handle)

    def _queue(self, run, call, stream, **tensors):
        borrow = Borrowed()
        run(self._handle, call(**borrow.each(**tensors), stream=stream_handle(stream, self._device)))


class Mha(_Kernel):
    """The flash-attention kernel alone, over up-projected keys of a batch, which lie one request after the other."""

    def __init__(self, query_len, seq_len, *, device, masked=False, **attention):
        arguments = (Attention(**attention).to_c(), to_c_batch(query_len, seq_len, True), device.handle, masked)
        super().__init__(library.hr_mha_create, library.hr_mha_free, device, *arguments)

    def run(self, *, q, key_nope, value, out, key_rope=None, index=None, count=None, lse=None, stream=None):
        """Queues it: q [T, H, nope + rope], key_nope [K, H, nope], key_rope [K, rope], value [K, H, v]; where it was
        made with `masked` also a selection, whose bit mask is built first."""
        tensors = dict(q=q, key_nope=key_nope, key_rope=key_rope, value=value)
        tensors.update(index=index, count=count, out=out, lse=lse)
        self._queue(library.hr_mha_run, HrMhaCall, stream, **tensors)


class Mqa(_Kernel):
    """Top-k MQA between absorbed queries and attended latents: union lists with their masks, and the kernel."""

    def __init__(self, query_len, seq_len, *, device, **attention):
        arguments = (Attention(**attention).to_c(), to_c_batch(query_len, seq_len, True), device.handle)
        super().__init__(library.hr_mqa_create, library.hr_mqa_free, device, *arguments)

    def run(self, *, query, cache, block_table, index, out, query_rope=None, count=None, stream=None):
        """Queues it: query [T, H, R], query_rope [T, H, rope], cache [pages, page size, R + rope], out [T, H, R]."""
        tensors = dict(query=query, query_rope=query_rope, cache=cache, block_table=block_table)
        tensors.update(index=index, count=count, out=out)
        self._queue(library.hr_mqa_run, HrMqaCall, stream, **tensors)
