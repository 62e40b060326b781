# SPDX-License-Identifier: Apache-2.0
"""The shared library, its functions and structures: python/c_api.h, told to ctypes."""

import ctypes
import os
import pathlib
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p

ABI = 5


class Error(Exception):
    """What was wrong (`argument`), what was expected and what came (`actual`)."""

    def __init__(self, argument, expected, actual):
        super().__init__(f"{argument}: expected {expected}, got {actual}")
        self.argument = argument
        self.expected = expected
        self.actual = actual


class HrTensor(ctypes.Structure):
    _fields_ = [("pointer", c_void_p), ("form", c_int32)]


class HrDlTensor(ctypes.Structure):
    """DLPack's description of a tensor; only the library looks into it."""

    _fields_ = [("words", c_int64 * 6)]


class HrAttention(ctypes.Structure):
    _fields_ = [
        ("num_heads", c_int64),
        ("kv_lora_rank", c_int64),
        ("qk_nope_head_dim", c_int64),
        ("qk_rope_head_dim", c_int64),
        ("v_head_dim", c_int64),
        ("scale", c_double),
        ("rule", c_char_p),
        ("compute", c_char_p),
        ("cache_format", c_char_p),
        ("space", c_char_p),
    ]


class HrBatch(ctypes.Structure):
    _fields_ = [
        ("requests", c_int64),
        ("query_len", POINTER(c_int32)),
        ("seq_len", POINTER(c_int32)),
        ("exact", c_int32),
    ]


class HrLimits(ctypes.Structure):
    _fields_ = [
        ("device", c_void_p),
        ("threads", c_int32),
        ("workspace_bytes", c_int64),
        ("max_tokens", c_int64),
        ("max_seq_len", c_int64),
        ("max_requests", c_int64),
    ]


class HrRequestPlan(ctypes.Structure):
    _fields_ = [
        ("query_len", c_int64),
        ("context_len", c_int64),
        ("path", c_char_p),
        ("predicted_ms", c_double),
        ("skip_scoring", c_int32),
        ("scoring_begin", c_int64),
    ]


class HrTables(ctypes.Structure):
    """The tensor of hr_plan_upload, as `Borrowed.fill` fills it."""

    _fields_ = [("tables", HrTensor)]


class HrCall(ctypes.Structure):
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
    "limits.device.threads": "threads",
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
    "hr_abi": (c_int32, []),
    "hr_version": (c_char_p, []),
    "hr_error_argument": (c_char_p, [c_void_p]),
    "hr_error_expected": (c_char_p, [c_void_p]),
    "hr_error_actual": (c_char_p, [c_void_p]),
    "hr_error_free": (None, [c_void_p]),
    "hr_knows_exchange": (c_int32, [c_void_p]),
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
        [POINTER(HrAttention), POINTER(HrBatch), POINTER(HrLimits), c_char_p, POINTER(c_void_p)],
    ),
    "hr_plan_remake": (FAILURE, [c_void_p, POINTER(HrBatch)]),
    "hr_plan_refresh": (FAILURE, [c_void_p, POINTER(HrBatch)]),
    "hr_plan_upload": (FAILURE, [c_void_p, POINTER(HrTensor), c_int64]),
    "hr_plan_table_bytes": (c_int64, [c_void_p]),
    "hr_plan_workspace_bytes": (c_int64, [c_void_p]),
    "hr_plan_kept_bytes": (FAILURE, [c_void_p, c_char_p, POINTER(c_int64)]),
    "hr_plan_requests": (c_int64, [c_void_p]),
    "hr_plan_request": (FAILURE, [c_void_p, c_int64, POINTER(HrRequestPlan)]),
    "hr_plan_reason": (FAILURE, [c_void_p, c_int64, POINTER(c_char_p)]),
    "hr_plan_explain": (FAILURE, [c_void_p, POINTER(c_char_p)]),
    "hr_plan_free": (None, [c_void_p]),
    "hr_attend": (FAILURE, [c_void_p, POINTER(HrCall)]),
}

# Those that call back into Python's extensions, and so keep Python's lock.
_LOCKED_FUNCTIONS = {
    "hr_lend": (c_int32, [c_void_p, POINTER(c_void_p), c_int32, POINTER(HrDlTensor), c_void_p]),
    "hr_work_stream": (c_int32, [c_void_p, c_int32, POINTER(c_int64)]),
}


def _raise_on_error(error, _function, _arguments):
    if error:
        try:
            raise Error(
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
    if loaded.hr_abi() != ABI:
        raise ImportError(f"{path}: expected version {ABI} of the interface, got {loaded.hr_abi()}")
    return loaded, locked


#: `locked` is the same library; a call of it keeps Python's lock.
library, locked = _load()


def version():
    """The library's version, "MAJOR.MINOR.PATCH"."""
    return library.hr_version().decode()
