# SPDX-License-Identifier: Apache-2.0
"""Devices, plans and the call."""

import ctypes
import dataclasses
import numbers
import operator
import sys
import weakref

from ._library import (
    TENSOR_NAMES,
    Error,
    HrAttention,
    HrBatch,
    HrDlCall,
    HrHints,
    HrLimits,
    HrRequestPlan,
    HrTables,
    library,
    locked,
)
from ._names import PATH_NAMES, compute_number, format_number, path_number, rule_fields, space_number
from ._tensors import Borrowed, addresses, exchange_of, shared_exchange, work_stream


def _expect(name, value, kind, expected):
    """The value, if it is of that kind."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Error(name, expected, repr(value))
    return value


def _integer(name, value, bits=32, least=None):
    """A number that the library's integer can hold; ctypes would wrap others."""
    most = 2 ** (bits - 1) - 1
    if not -most <= _expect(name, value, numbers.Integral, "an integer") <= most:
        raise Error(name, f"at most {most}", str(value))
    if least is not None and value < least:
        raise Error(name, f"at least {least}", str(value))
    return int(value)


@dataclasses.dataclass(frozen=True)
class Attention:
    """What does not change from step to step; the keywords of `plan` and `workspace_bound`.

    rule          "none", "lightning(2048)", "kpool(2048, 4, tail)", "kpool(2048, 4)", "opaque" or "opaque(2048)"
    compute       "bfloat16" ("bf16") or "float32" ("fp32"; the processor only)
    cache_format  "bf16" ("bfloat16"), "float32" ("fp32"), "fp8" ("fp8_e4m3") or "fp8_ds_mla"
    space         of the selections: "request_position" or "cache_slot"
    """

    num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    v_head_dim: int
    scale: float
    qk_rope_head_dim: int = 0
    rule: str = "none"
    compute: str = "bfloat16"
    cache_format: str = "bf16"
    space: str = "request_position"

    def to_c(self):
        fields = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is str:
                _expect(field.name, value, str, "a string")
            elif field.type is int:
                fields[field.name] = _integer(field.name, value)
            else:
                fields[field.name] = float(_expect(field.name, value, numbers.Real, "a number"))
        return HrAttention(
            **fields,
            **rule_fields(self.rule),
            compute=compute_number(self.compute),
            format=format_number(self.cache_format),
            space=space_number(self.space),
        )


def attention_of(keywords):
    """An `Attention` of keywords that somebody passed."""
    fields = {field.name: field for field in dataclasses.fields(Attention)}
    for name, value in keywords.items():
        if name not in fields:
            raise Error(name, f"another keyword: an attention has {', '.join(fields)}", repr(value))
    for name, field in fields.items():
        if name not in keywords and field.default is dataclasses.MISSING:
            raise Error(name, "a value", "nothing")
    return Attention(**keywords)


class Device:
    """A GPU, and what the library keeps for it, which threads and streams share freely."""

    def __init__(self, ordinal=0):
        handle = ctypes.c_void_p()
        library.hr_device_create(_integer("ordinal", ordinal), handle)
        self.handle = handle.value
        self.ordinal = ordinal
        weakref.finalize(self, library.hr_device_free, self.handle)

    @property
    def name(self):
        return library.hr_device_name(self.handle).decode()

    @property
    def unmet(self):
        """Why the kernels cannot run on it; empty when they can."""
        return library.hr_device_unmet(self.handle).decode()

    def warm_up(self, **attention):
        """Chooses and loads what an attention (the keywords of `Attention`) may take, and waits."""
        library.hr_device_warm_up(self.handle, attention_of(attention).to_c())


def device_count():
    """GPUs that can be used; 0 where there is none, or the library was built without CUDA."""
    return library.hr_device_count()


@dataclasses.dataclass(frozen=True)
class Request:
    """What a plan says about one request; `Plan.reason` says why."""

    query_len: int
    context_len: int
    path: str  #: of the last row
    predicted_ms: float
    skip_scoring: bool  #: no row reads the selection
    scoring_begin: int  #: rows at positions below it do not read the selection


def _index(name, value):
    try:
        return operator.index(value)
    except TypeError as reason:
        raise Error(name, "a whole number", repr(value)) from reason


def _indices(name, values):
    try:
        each = enumerate(values)
    except TypeError as reason:
        raise Error(name, "a sequence of whole numbers", repr(values)) from reason
    return [_index(f"{name}[{i}]", value) for i, value in each]


def to_c_batch(query_len, seq_len, exact):
    """Lengths for the library: any sequences of whole numbers."""
    query_len = _indices("query_len", query_len)
    seq_len = _indices("seq_len", seq_len)
    _expect("exact", exact, bool, "True or False")
    if len(query_len) != len(seq_len):
        raise Error("seq_len", f"{len(query_len)} lengths, as query_len has", str(len(seq_len)))
    for name, lengths in (("query_len", query_len), ("seq_len", seq_len)):
        for b, n in enumerate(lengths):
            if not 0 <= n < 2**31:
                raise Error(f"{name}[{b}]", "a number in [0, 2^31)", str(n))
    array = ctypes.c_int32 * len(query_len)
    return HrBatch(len(query_len), array(*query_len), array(*seq_len), exact)


def _to_c_limits(device, threads, workspace_limit, **most):
    limit = 0  # none
    if workspace_limit is not None:
        limit = _integer("workspace_limit", workspace_limit, bits=64)
        if limit < 1:
            raise Error("workspace_limit", "at least 1 byte, or None for no limit", str(workspace_limit))
    handle = None if device is None else _expect("device", device, Device, "a headrace.Device, or None").handle
    stated = {name: _integer(name, value, bits=64, least=0) for name, value in most.items()}
    return HrLimits(handle, limit, threads=_integer("threads", threads), **stated)


class Plan:
    """Which rows take which path; made by `plan`, used by every layer of a step that has the same attention."""

    def __init__(self, handle, device):
        self.handle = handle
        self.device = device  #: None: the processor
        self._tables = None
        weakref.finalize(self, library.hr_plan_free, handle)

    @property
    def workspace_bytes(self):
        return library.hr_plan_workspace_bytes(self.handle)

    @property
    def table_bytes(self):
        """Bytes that `upload` needs; 0 on the processor."""
        return library.hr_plan_table_bytes(self.handle)

    def upload(self, tables, *, stream=None):
        """Queues the writing of the plan's tables, without which `attend` on a GPU refuses it. Once after the plan was
        made or remade; nothing waits.

        tables  [at least table_bytes] uint8 on the GPU, at an address divisible by 16; the plan keeps it until it is
                uploaded elsewhere
        stream  torch's current one by default; `attend` is queued behind it
        """
        borrow = Borrowed()
        lent = HrTables()
        borrow.fill(lent, {"tables": tables})
        library.hr_dl_upload(self.handle, lent.tables, _stream_of(stream, self.device, tables))
        self._tables = tables

    def kept_bytes(self, path):
        """Bytes of the workspace in which what a path makes of a selection outlasts a call, for another layer with the
        same selection (`selection_kept`); 0 where it is made again."""
        kept = ctypes.c_int64()
        number = path_number("path", _expect("path", path, str, "a path's name"))
        library.hr_plan_kept_bytes(self.handle, number, kept)
        return kept.value

    @property
    def requests(self):
        """A `Request` each, in order."""
        count = library.hr_plan_request_count(self.handle)
        requests = (HrRequestPlan * count)()
        library.hr_plan_requests(self.handle, 0, count, requests, ctypes.sizeof(HrRequestPlan))
        return [
            Request(
                found.query_len,
                found.context_len,
                PATH_NAMES[found.path],
                found.predicted_ms,
                bool(found.skip_scoring),
                found.scoring_begin,
            )
            for found in requests
        ]

    def reason(self, request):
        """Why a request takes its path, as text, which is made when it is asked for."""
        text = ctypes.c_char_p()
        library.hr_plan_reason(self.handle, _integer("request", request), text)
        return text.value.decode()

    def explain(self):
        """The whole decision as text."""
        text = ctypes.c_char_p()
        library.hr_plan_explain(self.handle, text)
        return text.value.decode()

    def remake(self, query_len, seq_len, *, exact=False):
        """Makes it anew for another batch, in the memory that it has: what `plan` would make of that batch, without
        what `plan` takes the first time. On an error it stays as it was. On a GPU its tables are then uploaded anew."""
        library.hr_plan_remake(self.handle, to_c_batch(query_len, seq_len, exact))

    def refresh(self, query_len, seq_len, *, exact=False):
        """Makes it the plan of a later batch: as many requests, none longer than when it was made."""
        library.hr_plan_refresh(self.handle, to_c_batch(query_len, seq_len, exact))


def plan(
    query_len,
    seq_len,
    *,
    exact=False,
    device=None,
    threads=0,
    workspace_limit=None,
    max_tokens=0,
    max_seq_len=0,
    max_requests=0,
    force=None,
    tables=None,
    stream=None,
    **attention,
):
    """Chooses for every request the exact path of least predicted time.

    query_len, seq_len  of each request: new tokens, and keys in all; upper bounds unless `exact`
    device              a `Device`; None: the processor, with `threads` threads, at most 1024 (0: all)
    workspace_limit     bytes that the plan stays within
    force               "dense_mha", "masked_mha" or "topk_mqa" for every row
    tables, stream      on a GPU: `Plan.upload` at once, to this memory (`table_bound` bytes do for any batch)
    attention           the keywords of `Attention`
    """
    handle = ctypes.c_void_p()
    hints = None
    if force is not None:
        hints = HrHints(path_number("force", _expect("force", force, str, "a path's name, or None")))
    library.hr_plan_create(
        attention_of(attention).to_c(),
        to_c_batch(query_len, seq_len, exact),
        _to_c_limits(
            device,
            threads,
            workspace_limit,
            max_tokens=max_tokens,
            max_seq_len=max_seq_len,
            max_requests=max_requests,
        ),
        hints,
        handle,
    )
    made = Plan(handle.value, device)
    if tables is not None:
        made.upload(tables, stream=stream)
    return made


def _bound(function, attention, device, threads, workspace_limit, **most):
    bound = ctypes.c_int64()
    for name in ("max_tokens", "max_seq_len"):  # which a bound depends on, so that 0 does not leave them open
        _integer(name, most[name], least=1)
    function(attention_of(attention).to_c(), _to_c_limits(device, threads, workspace_limit, **most), bound)
    return bound.value


def workspace_bound(
    *, max_tokens, max_seq_len, max_requests=0, device=None, threads=0, workspace_limit=None, **attention
):
    """Bytes of workspace enough for the plan of every batch of at most `max_tokens` query tokens, `max_seq_len` keys a
    request, and `max_requests` requests (0: as many as tokens), those without query tokens included."""
    most = {"max_tokens": max_tokens, "max_seq_len": max_seq_len, "max_requests": max_requests}
    return _bound(library.hr_workspace_bound, attention, device, threads, workspace_limit, **most)


def table_bound(*, max_tokens, max_seq_len, max_requests=0, device=None, threads=0, workspace_limit=None, **attention):
    """The same of `Plan.table_bytes`; 0 on the processor."""
    most = {"max_tokens": max_tokens, "max_seq_len": max_seq_len, "max_requests": max_requests}
    return _bound(library.hr_table_bound, attention, device, threads, workspace_limit, **most)


def stream_handle(stream, device, tensor=None):
    """A CUDA stream as a number: one given so or as an object of torch. None is the current one of the library that
    owns the tensor, or of torch where that is in use, else the default stream."""
    if stream is None:
        exchange = exchange_of(type(tensor))
        if exchange is not None:
            return work_stream(exchange, device.ordinal)
        torch = sys.modules.get("torch")
        return torch.cuda.current_stream(device.ordinal).cuda_stream if torch else 0
    return _integer("stream", getattr(stream, "cuda_stream", stream), bits=64)


def _stream_of(stream, device, tensor=None):
    """The same for a plan's device; the processor has none."""
    if device is not None:
        return stream_handle(stream, device, tensor)
    if stream is not None:
        raise Error("stream", "None, for the plan is the processor's", repr(stream))
    return 0


def attend(
    plan,
    *,
    q,
    kv_b_proj,
    cache,
    block_table,
    query_start,
    seq_len,
    out,
    workspace,
    index=None,
    count=None,
    sink=None,
    lse=None,
    cache_scale=1.0,
    stream=None,
    selection_kept=False,
):
    """Runs a plan: fills `out` and `lse`. Tensors are on the plan's device, in its compute dtype where nothing else is
    said; the last dimension is contiguous, other strides are free.

    q            [T, H, nope + rope], rope applied
    kv_b_proj    [H * (nope + v), R]: of each head first its W_UK rows, then its W_UV rows
    cache        [pages, page size, row], this step's tokens appended: in the format's element type, or as uint8
    cache_scale  fp8 only
    block_table  [B, max pages] int32
    query_start  [B + 1] int32; seq_len [B] int32: exact
    index        [T, width] int32, count [T] int32: the selection, None where every row is covered
    sink         [H] float32
    out          [T, H, v] compute dtype or float32; lse [T, H] float32
    workspace    [at least plan.workspace_bytes] uint8, at an address divisible by 64, on a GPU by 256
    stream       on a GPU: where to queue the work, torch's current stream by default; the call does not wait for it
    selection_kept  another layer with the plan, selection, lengths, block table, page size and workspace of the call
                 before, on the same stream: lists and masks made of the selection are used again where
                 plan.kept_bytes(path) is not 0, and nothing changes elsewhere
    """
    _expect("plan", plan, Plan, "a headrace.Plan")
    if type(cache_scale) is not float:
        cache_scale = float(_expect("cache_scale", cache_scale, numbers.Real, "a number"))
    _expect("selection_kept", selection_kept, bool, "True or False")
    if index is None and count is not None:
        raise Error("index", "a selection, for count is given", "none")
    # In the order of HrDlCall.
    tensors = (q, kv_b_proj, sink, cache, block_table, query_start, seq_len, index, count, out, lse, workspace)
    exchange = shared_exchange(tensors)
    if exchange is None:
        handle = _stream_of(stream, plan.device, q)
        borrow = Borrowed()
        lent = borrow.each(**dict(zip(TENSOR_NAMES, tensors)))
        call = HrDlCall(**lent, cache_scale=cache_scale, stream=handle, selection_kept=selection_kept)
        library.hr_dl_attend(plan.handle, call)
        return
    own_stream = stream is None  # which the processor does not look at
    locked.hr_dl_attend_objects(
        plan.handle,
        exchange,
        addresses(tensors),
        cache_scale,
        own_stream,
        0 if own_stream else _stream_of(stream, plan.device),
        selection_kept,
    )
