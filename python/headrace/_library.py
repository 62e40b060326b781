# SPDX-License-Identifier: Apache-2.0
"""The shared library, its functions and structures: headrace/c_api.h and python/dl_api.h, told to ctypes."""

import ctypes
import os
import pathlib
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p

ABI = 2


class Error(Exception):
    """What was wrong (`argument`), what was expected and what came (`actual`)."""

    def __init__(self, argument, expected, actual):
        super().__init__(f"{argument}: expected {expected}, got {actual}")
        self.argument = argument
        self.expected = expected
        self.actual = actual


class UnsupportedError(Error):
    """Well formed, but not with this library, device or path: another one of these may serve."""


class OutOfMemoryError(Error):
    """Memory of the host or of a GPU: less at once, or later, may work."""


class DeviceError(Error):
    """CUDA or a library of it reported a failure; it may be of work that was queued before."""


# By the numbers of HR_UNSUPPORTED and so on; any other is an Error itself.
_KINDS = {2: UnsupportedError, 3: OutOfMemoryError, 4: DeviceError}


class HrTensor(ctypes.Structure):
    _fields_ = [("pointer", c_void_p), ("form", c_int32)]


class HrDlTensor(ctypes.Structure):
    """DLPack's description of a tensor; only the library looks into it."""

    _fields_ = [("words", c_int64 * 6)]


class Sized(ctypes.Structure):
    """A structure that begins with its size."""

    def __init__(self, *fields, **named):
        super().__init__(ctypes.sizeof(self), *fields, **named)


class HrAttention(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("num_heads", c_int64),
        ("kv_lora_rank", c_int64),
        ("qk_nope_head_dim", c_int64),
        ("qk_rope_head_dim", c_int64),
        ("v_head_dim", c_int64),
        ("scale", c_double),
        ("topk", c_int64),
        ("pool", c_int64),
        ("tail", c_int32),
        ("rule", c_int32),
        ("compute", c_int32),
        ("format", c_int32),
        ("space", c_int32),
        ("reserved", c_int32),
    ]


class HrBatch(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("requests", c_int64),
        ("query_len", POINTER(c_int32)),
        ("seq_len_bound", POINTER(c_int32)),
        ("exact", c_int32),
        ("reserved", c_int32),
    ]


class HrLimits(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("device", c_void_p),
        ("workspace_bytes", c_int64),
        ("max_tokens", c_int64),
        ("max_seq_len", c_int64),
        ("max_requests", c_int64),
        ("threads", c_int64),
    ]


class HrHints(Sized):
    _fields_ = [("size", c_size_t), ("force", c_int32), ("reserved", c_int32)]


class HrRequestPlan(ctypes.Structure):
    _fields_ = [
        ("query_len", c_int64),
        ("context_len", c_int64),
        ("scoring_begin", c_int64),
        ("predicted_ms", c_double),
        ("path", c_int32),
        ("skip_scoring", c_int32),
    ]


class HrTables(ctypes.Structure):
    """The tensor of hr_dl_upload, as `Borrowed.fill` fills it."""

    _fields_ = [("tables", HrTensor)]


class HrDlCall(ctypes.Structure):
    _fields_ = [
        ("q", HrTensor),
        ("kv_b_proj", HrTensor),
        ("sink", HrTensor),
        ("cache", HrTensor),
        ("block_table", HrTensor),
        ("query_start", HrTensor),
        ("seq_len", HrTensor),
        ("index", HrTensor),
        ("count", HrTensor),
        ("out", HrTensor),
        ("lse", HrTensor),
        ("workspace", HrTensor),
        ("cache_scale", c_float),
        ("stream", c_int64),
        ("selection_kept", c_int32),
    ]


#: The tensors of a call, its first fields.
TENSOR_NAMES = tuple(name for name, kind in HrDlCall._fields_ if kind is HrTensor)

#: The result of a function that gives an error or nothing.
FAILURE = object()

# The library's names of arguments, and the keywords that they come from. What follows in brackets is kept; other names
# are keywords, or begin with one.
_KEYWORDS = {
    "attention.scale": "scale",
    "attention.compute": "compute",
    "attention.format": "cache_format",
    "cache format fp8_ds_mla": "cache_format",
    "topk": "rule",
    "pool": "rule",
    "width": "rule",
    "batch.query_len": "query_len",
    "batch.seq_len_bound": "seq_len",
    "limits": "max_tokens",
    "limits.max_requests": "max_requests",
    "limits.workspace_bytes": "workspace_limit",
    "limits.device": "device",
    "limits.threads": "threads",
    "cache.scale": "cache_scale",
    "cache.row_bytes": "cache",
    "cache.row_stride": "cache",
    "cache.page_stride": "cache",
    "cache.data": "cache",
    "selection.index": "index",
    "selection.count": "count",
    "selection.space": "space",
}


def keyword_of(argument):
    """The keyword that the library's argument is here, with what stands in brackets behind it."""
    name, bracket, rest = argument.partition("[")
    return _KEYWORDS.get(name, name) + bracket + rest


# Name: (result, arguments).
_FUNCTIONS = {
    "hr_dl_abi": (c_int32, []),
    "hr_version": (c_char_p, []),
    "hr_error_argument": (c_char_p, [c_void_p]),
    "hr_error_expected": (c_char_p, [c_void_p]),
    "hr_error_actual": (c_char_p, [c_void_p]),
    "hr_error_kind": (c_int32, [c_void_p]),
    "hr_error_free": (None, [c_void_p]),
    "hr_dl_knows_exchange": (c_int32, [c_void_p]),
    "hr_device_count": (c_int32, []),
    "hr_device_create": (FAILURE, [c_int32, POINTER(c_void_p)]),
    "hr_device_name": (c_char_p, [c_void_p]),
    "hr_device_unmet": (c_char_p, [c_void_p]),
    "hr_device_warm_up": (FAILURE, [c_void_p, POINTER(HrAttention)]),
    "hr_device_free": (None, [c_void_p]),
    "hr_workspace_bound": (FAILURE, [POINTER(HrAttention), POINTER(HrLimits), POINTER(c_int64)]),
    "hr_table_bound": (FAILURE, [POINTER(HrAttention), POINTER(HrLimits), POINTER(c_int64)]),
    "hr_plan_create": (
        FAILURE,
        [POINTER(HrAttention), POINTER(HrBatch), POINTER(HrLimits), POINTER(HrHints), POINTER(c_void_p)],
    ),
    "hr_plan_remake": (FAILURE, [c_void_p, POINTER(HrBatch)]),
    "hr_plan_refresh": (FAILURE, [c_void_p, POINTER(HrBatch)]),
    "hr_dl_upload": (FAILURE, [c_void_p, POINTER(HrTensor), c_int64]),
    "hr_plan_table_bytes": (c_int64, [c_void_p]),
    "hr_plan_workspace_bytes": (c_int64, [c_void_p]),
    "hr_plan_kept_bytes": (FAILURE, [c_void_p, c_int32, POINTER(c_int64)]),
    "hr_plan_request_count": (c_int64, [c_void_p]),
    "hr_plan_requests": (FAILURE, [c_void_p, c_int64, c_int64, POINTER(HrRequestPlan), c_size_t]),
    "hr_plan_reason": (FAILURE, [c_void_p, c_int64, POINTER(c_char_p)]),
    "hr_plan_explain": (FAILURE, [c_void_p, POINTER(c_char_p)]),
    "hr_plan_free": (None, [c_void_p]),
    "hr_dl_attend": (FAILURE, [c_void_p, POINTER(HrDlCall)]),
}

# Those that call back into Python's extensions, and so keep Python's lock.
_LOCKED_FUNCTIONS = {
    "hr_dl_lend": (c_int32, [c_void_p, POINTER(c_void_p), c_int32, POINTER(HrDlTensor), c_void_p]),
    "hr_dl_attend_objects": (
        FAILURE,
        [c_void_p, c_void_p, POINTER(c_void_p), c_float, c_int32, c_int64, c_int32],
    ),
    "hr_dl_work_stream": (c_int32, [c_void_p, c_int32, POINTER(c_int64)]),
}


def _raise_on_error(error, _function, _arguments):
    if error:
        try:
            raise _KINDS.get(library.hr_error_kind(error), Error)(
                keyword_of(library.hr_error_argument(error).decode()),
                library.hr_error_expected(error).decode(),
                library.hr_error_actual(error).decode(),
            )
        finally:
            library.hr_error_free(error)


def declare(library, functions):
    """Gives functions of the library their types: {name: (result, arguments)}."""
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_void_p if result is FAILURE else result
        if result is FAILURE:
            function.errcheck = _raise_on_error


def _load():
    path = os.environ.get("HEADRACE_LIBRARY") or pathlib.Path(__file__).with_name("libheadrace_python.so")
    try:
        loaded = ctypes.CDLL(os.fspath(path))
        declare(loaded, _FUNCTIONS)
        locked = ctypes.PyDLL(os.fspath(path))
        declare(locked, _LOCKED_FUNCTIONS)
    except (OSError, AttributeError) as reason:
        raise ImportError(
            f"{path}: expected Headrace's library, got: {reason}. Build the target headrace_python and put its "
            "folder python/ of the build on PYTHONPATH, or name the library in HEADRACE_LIBRARY."
        ) from reason
    if loaded.hr_dl_abi() != ABI:
        raise ImportError(f"{path}: expected version {ABI} of the interface, got {loaded.hr_dl_abi()}")
    return loaded, locked


#: `locked` is the same library; a call of it keeps Python's lock.
library, locked = _load()


def version():
    """The library's version, "MAJOR.MINOR.PATCH"."""
    return library.hr_version().decode()
