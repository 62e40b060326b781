# SPDX-License-Identifier: Apache-2.0
"""The package on the processor, with numpy: against a float64 oracle written out here, and against a recording of
another implementation. `ctest -R python_binding_test` runs it; PYTHONPATH is the folder python/ of a build."""

import contextlib
import ctypes
import io
import json
import math
import os
import pathlib
import re
import sys
import threading
import unittest

import numpy as np

import headrace
from headrace import _bench, _plan

RECORDINGS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "recordings"
PATHS = ("dense_mha", "masked_mha", "topk_mqa")
ALIGNMENT = 64
SEED = int(os.environ.get("HEADRACE_TEST_SEED") or np.random.SeedSequence().entropy % 2**32)


def aligned(size):
    """Bytes at an address that suits a workspace."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size]


def oracle(case):
    """Softmax attention over selected causal keys, in float64: out [T, H, v] and the log-sum-exp [T, H]."""
    g = case.attention
    heads, nope, rope, v = (g[k] for k in ("num_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    weights = case.kv_b_proj.astype(np.float64).reshape(heads, nope + v, -1)
    out = np.zeros((len(case.q), heads, v))
    lse = np.full((len(case.q), heads), -np.inf)
    for b, (query_len, seq_len) in enumerate(zip(case.query_len, case.seq_len)):
        keys = case.keys[b].astype(np.float64)
        latent, rope_key = keys[:, : -rope or None], keys[:, keys.shape[1] - rope :]
        up = np.einsum("kr,hdr->khd", latent, weights)
        for i in range(query_len):
            t = case.query_start[b] + i
            position = seq_len - query_len + i
            seen = np.arange(position + 1)
            if case.index is not None:
                chosen = case.index[t, : case.count[t] if case.count is not None else None]
                seen = np.unique(chosen[(chosen >= 0) & (chosen <= position)])
            if len(seen) == 0:
                continue
            q = case.q[t].astype(np.float64)
            scores = np.einsum("hd,khd->hk", q[:, :nope], up[seen, :, :nope])
            scores += np.einsum("hd,kd->hk", q[:, nope:], rope_key[seen])
            scores *= g["scale"]
            most = scores.max(axis=1)
            weight = np.exp(scores - most[:, None])
            lse[t] = most + np.log(weight.sum(axis=1))
            out[t] = np.einsum("hk,khv->hv", weight / weight.sum(axis=1)[:, None], up[seen, :, nope:])
            if case.sink is not None:
                out[t] /= 1 + np.exp(case.sink - lse[t])[:, None]
    return out, lse


class Case:
    """A random step: requests of some new tokens after some cached ones, in scattered pages."""

    def __init__(self, rng, shapes, *, rope, rule, cache_format="float32", page_size=5, selected=True, sink=False):
        heads, rank, nope, v = 3, 16, 8, 4
        self.attention = dict(
            num_heads=heads,
            kv_lora_rank=rank,
            qk_nope_head_dim=nope,
            qk_rope_head_dim=rope,
            v_head_dim=v,
            scale=1 / math.sqrt(nope + rope),
            rule=rule,
            compute="float32",
            cache_format=cache_format,
        )
        self.query_len = [new for new, _ in shapes]
        self.seq_len = [new + context for new, context in shapes]
        self.query_start = np.cumsum([0, *self.query_len]).astype(np.int32)
        tokens = int(self.query_start[-1])
        self.q = rng.normal(size=(tokens, heads, nope + rope)).astype(np.float32)
        self.kv_b_proj = (rng.normal(size=(heads * (nope + v), rank)) / math.sqrt(rank)).astype(np.float32)
        self.sink = rng.normal(size=heads).astype(np.float32) if sink else None
        self.keys = [rng.normal(size=(n, rank + rope)).astype(np.float32) for n in self.seq_len]
        self.index = self.count = None
        if selected:
            width = 7
            # Repeated, negative and future positions are there, and are ignored.
            self.index = rng.integers(-2, max(self.seq_len) + 3, size=(tokens, width)).astype(np.int32)
            self.count = rng.integers(0, width + 1, size=tokens).astype(np.int32)
        self._page(rng, rank + rope, page_size)
        self.cache_scale = 1.0

    def _page(self, rng, row, page_size):
        pages = [-(-n // page_size) for n in self.seq_len]
        order = rng.permutation(sum(pages) + 2).astype(np.int32)
        self.block_table = np.full((len(pages), max(pages) + 1), -1, np.int32)
        # What nobody may read is NaN, between rows and between pages as well.
        memory = np.full((len(order), page_size + 1, row + 3), np.nan, np.float32)
        self.cache = memory[:, :page_size, :row]
        for b, keys in enumerate(self.keys):
            mine, order = order[: pages[b]], order[pages[b] :]
            self.block_table[b, : pages[b]] = mine
            for position, key in enumerate(keys):
                self.cache[mine[position // page_size], position % page_size] = key

    def plan(self, **options):
        return headrace.plan(self.query_len, self.seq_len, exact=True, threads=1, **options, **self.attention)

    def arguments(self, plan):
        tokens, heads, v = len(self.q), self.attention["num_heads"], self.attention["v_head_dim"]
        return dict(
            q=self.q,
            kv_b_proj=self.kv_b_proj,
            cache=self.cache,
            cache_scale=self.cache_scale,
            block_table=self.block_table,
            query_start=self.query_start,
            seq_len=np.array(self.seq_len, np.int32),
            index=self.index,
            count=self.count,
            sink=self.sink,
            out=np.full((tokens, heads, v + 2), np.nan, np.float32)[:, :, :v],
            lse=np.full((tokens, heads), np.nan, np.float32),
            workspace=aligned(plan.workspace_bytes),
        )

    def attend(self, **options):
        plan = self.plan(**options)
        arguments = self.arguments(plan)
        headrace.attend(plan, **arguments)
        return arguments["out"], arguments["lse"]


class Versioned:
    """An array as a producer of DLPack 1 offers it, with whatever is to be told of it."""

    class Tensor(ctypes.Structure):
        _fields_ = [
            ("version", ctypes.c_uint32 * 2),
            ("context", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
            ("flags", ctypes.c_uint64),
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("rank", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
        ]

    def __init__(self, array, *, major=1, flags=0, device=(1, 0), type=(2, 32, 1), byte_offset=0, strides=True):
        dims = ctypes.c_int64 * array.ndim
        steps = dims(*(step // array.itemsize for step in array.strides)) if strides else None
        self.array = array
        self.tensor = self.Tensor(
            (major, 0), None, None, flags, array.ctypes.data - byte_offset, device, array.ndim, *type,
            dims(*array.shape), steps, byte_offset,
        )  # fmt: skip

    def __dlpack_device__(self):
        return tuple(self.tensor.device)

    def __dlpack__(self, *, max_version, stream=None):
        new = ctypes.pythonapi.PyCapsule_New
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        new.restype = ctypes.py_object
        return new(ctypes.addressof(self.tensor), b"dltensor_versioned", None)


class Lent(Versioned):
    """An array of a library with DLPack's C exchange interface, as PyTorch's tensors have it. It has no capsules."""

    lent = 0  # how often the interface was asked
    refuses = False
    stream = 0

    FromObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
    WorkStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))

    class Exchange(ctypes.Structure):
        _fields_ = [
            ("version", ctypes.c_uint32 * 2),
            ("older", ctypes.c_void_p),
            ("unused", ctypes.c_void_p * 3),
            ("from_object", ctypes.c_void_p),
            ("work_stream", ctypes.c_void_p),
        ]

    def __dlpack__(self, *, max_version, stream=None):
        raise BufferError("capsules are the slow way")

    @FromObject
    def _from_object(tensor, to):
        Lent.lent += 1
        if Lent.refuses:
            return -1
        ctypes.memmove(to, ctypes.addressof(tensor.tensor) + Versioned.Tensor.data.offset, 48)
        return 0

    @WorkStream
    def _work_stream(device_type, ordinal, to):
        to[0] = Lent.stream + 100 * device_type + ordinal
        return 0

    @classmethod
    def offer(cls, *versions):
        """Tables of these versions, the later ones before the earlier; all but version 1 have no functions."""
        cls.tables = []
        for version in versions:
            table = cls.Exchange((version, 3), ctypes.addressof(cls.tables[-1]) if cls.tables else None)
            if version == 1:
                table.from_object = ctypes.cast(cls._from_object, ctypes.c_void_p).value
                table.work_stream = ctypes.cast(cls._work_stream, ctypes.c_void_p).value
            cls.tables.append(table)
        new = ctypes.pythonapi.PyCapsule_New
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        new.restype = ctypes.py_object
        return type(
            "Offered", (cls,), {"__dlpack_c_exchange_api__": new(ctypes.addressof(cls.tables[-1]), EXCHANGE_NAME, None)}
        )


EXCHANGE_NAME = b"dlpack_exchange_api"  # a capsule keeps the address of its name
SHAPES = [(9, 0), (1, 20), (6, 11), (3, 0)]


class Binding(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(SEED)

    def expect_oracle(self, case, **options):
        """Float32 sums of a few dozen terms near 1; a wrong key or head is off by tenths."""
        out, lse = case.attend(**options)
        expected_out, expected_lse = oracle(case)
        np.testing.assert_allclose(out, expected_out, rtol=0, atol=2e-4)
        np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(expected_lse))
        finite = np.isfinite(expected_lse)
        np.testing.assert_allclose(lse[finite], expected_lse[finite], rtol=0, atol=2e-4)


class Attend(Binding):
    def test_every_path_equals_the_oracle(self):
        for path in PATHS:
            for rope in (0, 4):
                for sink in (False, True):
                    with self.subTest(path=path, rope=rope, sink=sink):
                        dense = path == "dense_mha"
                        case = Case(
                            self.rng,
                            SHAPES,
                            rope=rope,
                            rule="none" if dense else "opaque(7)",
                            selected=not dense,
                            sink=sink,
                        )
                        self.assertEqual({r.path for r in case.plan(force=path).requests}, {path})
                        self.expect_oracle(case, force=path)

    def test_without_counts_every_column_counts(self):
        case = Case(self.rng, SHAPES, rope=4, rule="opaque")
        case.count = None
        self.expect_oracle(case)

    def test_strides_of_single_entries_mean_nothing(self):
        case = Case(self.rng, SHAPES, rope=4, rule="none", selected=False, page_size=1)
        pages, _, row = case.cache.shape
        page_step, _, step = case.cache.strides
        case.cache = np.lib.stride_tricks.as_strided(case.cache, (pages, 1, row), (page_step, step, step))
        self.expect_oracle(case)

    def test_cache_as_bytes(self):
        case = Case(self.rng, SHAPES, rope=4, rule="none", selected=False)
        case.cache = np.ascontiguousarray(case.cache).view(np.uint8)
        self.expect_oracle(case)

    def test_fp8_cache_with_a_scale(self):
        case = Case(self.rng, SHAPES, rope=4, rule="none", selected=False, cache_format="fp8")
        case.cache_scale = 0.125
        # e4m3 without NaN: sign, 4 bits of exponent with bias 7, 3 bits of mantissa.
        code = np.arange(256)
        exponent, mantissa = code >> 3 & 15, code & 7
        value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
        value = np.where(code & 128, -value, value) * case.cache_scale
        case.cache = self.rng.integers(0, 96, size=case.cache.shape).astype(np.uint8)
        case.cache |= self.rng.integers(0, 2, size=case.cache.shape).astype(np.uint8) << 7
        page_size = case.cache.shape[1]
        for b, n in enumerate(case.seq_len):
            position = np.arange(n)
            rows = case.cache[case.block_table[b, position // page_size], position % page_size]
            case.keys[b] = value[rows].astype(np.float32)
        self.expect_oracle(case)

    def test_producers_of_dlpack_1(self):
        case = Case(self.rng, SHAPES, rope=4, rule="none", selected=False, cache_format="fp8")
        case.cache = self.rng.integers(0, 96, size=case.cache.shape).astype(np.uint8)
        plan = case.plan()
        arguments = case.arguments(plan)
        headrace.attend(plan, **arguments)
        versioned = {
            **arguments,
            "q": Versioned(case.q, flags=1, byte_offset=8),
            "kv_b_proj": Versioned(case.kv_b_proj, strides=False),
            "cache": Versioned(case.cache, type=(10, 8, 1)),
            "out": Versioned(np.zeros_like(arguments["out"])),
        }
        headrace.attend(plan, **versioned)
        np.testing.assert_array_equal(versioned["out"].array, arguments["out"])

    def test_producers_of_the_exchange_interface(self):
        case = Case(self.rng, SHAPES, rope=4, rule="opaque(7)")
        types = {"f": (2, 32, 1), "i": (0, 32, 1), "u": (1, 8, 1)}
        for versions in ((1,), (1, 2)):
            with self.subTest(versions=versions):
                plan = case.plan()
                arguments = case.arguments(plan)
                offered = Lent.offer(*versions)
                tensors = {
                    name: offered(a, type=types[a.dtype.kind]) if isinstance(a, np.ndarray) else a
                    for name, a in arguments.items()
                }
                Lent.lent = 0
                headrace.attend(plan, **tensors)
                self.assertEqual(Lent.lent, sum(isinstance(a, np.ndarray) for a in arguments.values()))
                expected_out, _ = oracle(case)
                np.testing.assert_allclose(tensors["out"].array, expected_out, rtol=0, atol=2e-4)
                with self.assertRaises(headrace.Error) as raised:
                    headrace.attend(plan, **{**tensors, "kv_b_proj": None})
                self.assertEqual(raised.exception.argument, "kv_b_proj")
                Lent.refuses = True
                with self.assertRaisesRegex(headrace.Error, "^q: .*refusal"):
                    headrace.attend(plan, **tensors)
                Lent.refuses = False
                # Beside tensors of another library, everything goes by capsules.
                with self.assertRaisesRegex(headrace.Error, "capsules are the slow way"):
                    headrace.attend(plan, **{**tensors, "q": arguments["q"]})

    def test_other_threads_run_during_a_call(self):
        case = Case(self.rng, [(4000, 0)], rope=4, rule="none", selected=False)
        plan = case.plan()
        offered = Lent.offer(1)
        types = {"f": (2, 32, 1), "i": (0, 32, 1), "u": (1, 8, 1)}
        tensors = {
            name: offered(a, type=types[a.dtype.kind]) if isinstance(a, np.ndarray) else a
            for name, a in case.arguments(plan).items()
        }
        over = threading.Event()

        def call():
            try:
                headrace.attend(plan, **tensors)
            finally:
                over.set()

        thread = threading.Thread(target=call)
        turns = 0
        thread.start()
        while not over.wait(0.002):
            turns += 1
        thread.join()
        self.assertGreater(turns, 2)

    def test_unknown_exchange_interfaces_are_not_asked(self):
        case = Case(self.rng, SHAPES, rope=4, rule="none", selected=False)
        plan = case.plan()
        offered = Lent.offer(2)
        tensors = {n: offered(a) if isinstance(a, np.ndarray) else a for n, a in case.arguments(plan).items()}
        with self.assertRaisesRegex(headrace.Error, "capsules are the slow way"):
            headrace.attend(plan, **tensors)

    def test_stream_of_the_exchange_interface(self):
        gpu = type("Gpu", (), {"ordinal": 3})
        offered = Lent.offer(1)
        Lent.stream = 7000
        self.assertEqual(_plan.stream_handle(None, gpu, offered(np.zeros(1, np.float32))), 7203)
        self.assertEqual(_plan.stream_handle(5, gpu, offered(np.zeros(1, np.float32))), 5)

    def test_tensors_are_given_back(self):
        case = Case(self.rng, SHAPES, rope=4, rule="opaque")
        plan = case.plan()
        arguments = case.arguments(plan)
        arrays = {name: a for name, a in arguments.items() if isinstance(a, np.ndarray)}
        before = {name: sys.getrefcount(a) for name, a in arrays.items()}
        for _ in range(3):
            headrace.attend(plan, **arguments)
        with self.assertRaises(headrace.Error):
            headrace.attend(plan, **{**arguments, "lse": case.block_table})
        self.assertEqual(before, {name: sys.getrefcount(a) for name, a in arrays.items()})


class Recording(unittest.TestCase):
    """GLM-5.3-Flash's layer as another implementation computed it: no rope, and a selection that was recorded."""

    FOLDER = RECORDINGS / "glm5_next"

    @staticmethod
    def load(path):
        """The tensors of a safetensors file, bfloat16 as float32."""
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        tensors = {}
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(data[begin:end], {"F32": np.float32, "I32": np.int32}[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"]).copy()
        return tensors

    def test_layers(self):
        config = json.loads((self.FOLDER / "config.json").read_text())
        config = config.get("text_config", config)
        weights = self.load(self.FOLDER / "model.safetensors")
        recorded = self.load(self.FOLDER / "recording.safetensors")
        heads, rank = config["num_attention_heads"], config["kv_lora_rank"]
        nope, v = config["qk_nope_head_dim"], config["v_head_dim"]
        index = recorded["layers.0.topk_indices"]
        tokens = len(index)

        def norm(x, weight):
            return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + config["rms_norm_eps"]) * weight

        for layer in (0, 1):
            w = {k.split("self_attn.")[1]: t for k, t in weights.items() if f"layers.{layer}." in k}
            hidden = recorded[f"layers.{layer}.hidden_states"]
            q = norm(hidden @ w["q_a_proj.weight"].T, w["q_a_layernorm.weight"]) @ w["q_b_proj.weight"].T
            latent = norm(hidden @ w["kv_a_proj_with_mqa.weight"].T, w["kv_a_layernorm.weight"])
            for path in ("masked_mha", "topk_mqa"):
                with self.subTest(layer=layer, path=path):
                    plan = headrace.plan(
                        [tokens],
                        [tokens],
                        threads=1,
                        force=path,
                        num_heads=heads,
                        kv_lora_rank=rank,
                        qk_nope_head_dim=nope,
                        v_head_dim=v,
                        scale=1 / math.sqrt(nope),
                        rule=f"opaque({index.shape[1]})",
                        compute="float32",
                        cache_format="float32",
                    )
                    out = np.empty((tokens, heads, v), np.float32)
                    headrace.attend(
                        plan,
                        q=q.reshape(tokens, heads, nope),
                        kv_b_proj=w["kv_b_proj.weight"],
                        cache=latent.reshape(1, tokens, rank),
                        block_table=np.zeros((1, 1), np.int32),
                        query_start=np.array([0, tokens], np.int32),
                        seq_len=np.array([tokens], np.int32),
                        index=index,
                        out=out,
                        workspace=aligned(plan.workspace_bytes),
                    )
                    output = out.reshape(tokens, -1) @ w["o_proj.weight"].T
                    expected = recorded[f"layers.{layer}.output"]
                    error = np.linalg.norm(output - expected, axis=1) / np.linalg.norm(expected, axis=1)
                    self.assertLess(error.max(), 1e-4)


class Plans(Binding):
    def test_says_what_it_decided(self):
        case = Case(self.rng, [(4, 0), (20, 5)], rope=4, rule="kpool(8, 4, tail)")
        plan = case.plan()
        first, second = plan.requests
        self.assertEqual((first.query_len, first.context_len, first.skip_scoring), (4, 0, True))
        self.assertEqual((second.query_len, second.context_len, second.skip_scoring), (20, 5, False))
        self.assertEqual(second.scoring_begin, 4 * (8 // 4) + 4 - 1)
        self.assertIn(first.path, PATHS)
        self.assertIn("kpool(8, 4, tail) covers every row", plan.reason(0))
        for request in (0, 1):
            self.assertIn(plan.reason(request), plan.explain())
        with self.assertRaises(headrace.Error) as raised:
            plan.reason(2)
        self.assertEqual(raised.exception.argument, "request")

    def test_limits_and_bounds(self):
        attention = {**Case(self.rng, [(1, 0)], rope=4, rule="none").attention, "kv_lora_rank": 512}
        free = headrace.plan([500], [3000], threads=1, **attention)
        bound = headrace.workspace_bound(max_tokens=500, max_seq_len=3000, threads=1, **attention)
        self.assertGreaterEqual(bound, free.workspace_bytes)
        self.assertEqual(free.kept_bytes("dense_mha"), 0)
        with self.assertRaises(headrace.Error) as raised:
            free.kept_bytes("dense")
        self.assertEqual(raised.exception.argument, "path")
        padded = {"max_tokens": 500, "max_seq_len": 3000, "max_requests": 1, "threads": 1, **attention}
        self.assertLessEqual(headrace.workspace_bound(**padded), bound)
        with self.assertRaises(headrace.Error) as raised:
            headrace.plan([1, 0], [1, 5], threads=1, max_requests=1, **attention)
        self.assertEqual(raised.exception.argument, "query_len")
        limit = free.workspace_bytes // 2
        cut = headrace.plan([500], [3000], threads=1, workspace_limit=limit, force="dense_mha", **attention)
        self.assertLessEqual(cut.workspace_bytes, limit)

    def test_the_processor_has_no_tables(self):
        case = Case(self.rng, [(4, 0)], rope=4, rule="none")
        plan = case.plan()
        self.assertEqual(plan.table_bytes, 0)
        self.assertEqual(headrace.table_bound(max_tokens=9, max_seq_len=9, threads=1, **case.attention), 0)
        with self.assertRaises(headrace.Error) as raised:
            plan.upload(np.zeros(16, np.uint8))
        self.assertEqual(raised.exception.argument, "plan")
        Lent.lent = 0
        with self.assertRaises(headrace.Error) as raised:  # after the tensor came by the exchange interface
            plan.upload(Lent.offer(1)(np.zeros(16, np.uint8), type=(1, 8, 1)))
        self.assertEqual((raised.exception.argument, Lent.lent), ("plan", 1))
        with self.assertRaises(headrace.Error) as raised:
            headrace.table_bound(max_tokens=0, max_seq_len=9, threads=1, **case.attention)
        self.assertEqual(raised.exception.argument, "max_tokens")

    def test_exact_lengths_and_bounds(self):
        case = Case(self.rng, SHAPES, rope=4, rule="opaque")
        shorter = np.array(case.seq_len, np.int32) - [0, 1, 2, 0]
        exact = case.plan()
        with self.assertRaises(headrace.Error) as raised:
            headrace.attend(exact, **{**case.arguments(exact), "seq_len": shorter.astype(np.int32)})
        self.assertEqual(raised.exception.argument, "seq_len[1]")
        bounds = headrace.plan(case.query_len, case.seq_len, threads=1, **case.attention)
        headrace.attend(bounds, **{**case.arguments(bounds), "seq_len": shorter.astype(np.int32)})

    def test_remake(self):
        case = Case(self.rng, SHAPES, rope=4, rule="opaque")
        plan = headrace.plan([1], [1], threads=1, **case.attention)
        for _ in range(2):
            plan.remake([700, 2], [900, 50])
            plan.remake(case.query_len, case.seq_len, exact=True)
            self.assertEqual(plan.explain(), case.plan().explain())
        before = plan.explain()
        with self.assertRaises(headrace.Error):
            plan.remake([3], [2])
        self.assertEqual(plan.explain(), before)
        arguments = case.arguments(plan)
        headrace.attend(plan, **arguments)
        np.testing.assert_allclose(arguments["out"], oracle(case)[0], rtol=0, atol=2e-4)

    def test_refresh(self):
        case = Case(self.rng, SHAPES, rope=4, rule="opaque")
        plan = headrace.plan(
            [n + 3 for n in case.query_len], [n + 9 for n in case.seq_len], threads=1, **case.attention
        )
        plan.refresh(case.query_len, case.seq_len, exact=True)
        self.assertEqual([r.query_len for r in plan.requests], case.query_len)
        arguments = case.arguments(plan)
        headrace.attend(plan, **arguments)
        np.testing.assert_allclose(arguments["out"], oracle(case)[0], rtol=0, atol=2e-4)
        with self.assertRaises(headrace.Error):
            plan.refresh([n + 4 for n in case.query_len], [n + 9 for n in case.seq_len])


class Errors(Binding):
    def expect(self, argument, expected, actual, call):
        with self.assertRaises(headrace.Error) as raised:
            call()
        error = raised.exception
        self.assertEqual(error.argument, argument)
        self.assertIn(expected, error.expected)
        self.assertIn(actual, error.actual)
        self.assertEqual(str(error), f"{error.argument}: expected {error.expected}, got {error.actual}")

    def test_plan(self):
        attention = Case(self.rng, [(1, 0)], rope=4, rule="none").attention

        def plan(query_len=(2,), seq_len=(2,), force=None, limit=None, **changes):
            return headrace.plan(query_len, seq_len, force=force, workspace_limit=limit, **{**attention, **changes})

        for rule in (
            "",
            "lightning",
            "lightning(2",
            "lightning(x)",
            "kpool(8)",
            "kpool(8, 4, head)",
            "none(3)",
            "opaque()",
        ):
            self.expect("rule", "kpool(TOPK, POOL, tail)", f'"{rule}"', lambda rule=rule: plan(rule=rule))
        for rule in ("none", "opaque", "opaque(7)", "lightning(2048)", "kpool(2048,4)", "kpool( 2048 , 4 , tail )"):
            self.assertIn(rule.split("(")[0], plan(rule=rule).explain())
        self.expect("rule", "[1, ", "0", lambda: plan(rule="lightning(0)"))
        self.expect("compute", "bfloat16", '"half"', lambda: plan(compute="half"))
        self.expect("cache_format", "fp8_ds_mla", '"fp4"', lambda: plan(cache_format="fp4"))
        self.expect("space", "cache_slot", '"page"', lambda: plan(space="page"))
        self.expect("force", "topk_mqa", "sparse", lambda: plan(force="sparse"))
        self.expect("rule", "a multiple of the pool, 3", "8", lambda: plan(rule="kpool(8, 3)"))
        for threads in (-1, 1025, 1_000_000):
            self.expect("threads", "[0, 1024]", str(threads), lambda threads=threads: plan(threads=threads))
        for compute, cache_format in (("bf16", "bfloat16"), ("bfloat16", "bf16"), ("fp32", "fp32")):
            self.assertEqual(len(plan(compute=compute, cache_format=cache_format).requests), 1)
        self.expect("workspace_limit", "at least", "1", lambda: plan(limit=1))
        self.expect("workspace_limit", "at least 1 byte", "0", lambda: plan(limit=0))
        self.expect("path", "topk_mqa", "sparse", lambda: plan().kept_bytes("sparse"))
        self.expect("rule", "opaque(WIDTH)", str(2**64), lambda: plan(rule=f"lightning({2**64})"))
        self.expect("force", "can serve request 0", "dense_mha", lambda: plan(force="dense_mha", rule="opaque"))
        self.expect("seq_len", "2 lengths", "1", lambda: plan(query_len=(1, 2)))
        self.expect("query_len[0]", "[0, 2^31)", "-1", lambda: plan(query_len=(-1,)))
        self.expect("workspace_limit", "at least 1 byte", "-5", lambda: plan(limit=-5))
        for name in ("rule", "compute", "cache_format", "space"):
            self.expect(name, "a string", "None", lambda name=name: plan(**{name: None}))
        self.expect("num_heads", "an integer", "'4'", lambda: plan(num_heads="4"))
        self.expect("num_heads", "at most 2147483647", str(2**64 + 4), lambda: plan(num_heads=2**64 + 4))
        self.expect("scale", "a number", "None", lambda: plan(scale=None))
        self.expect("workspace_limit", "at most", str(2**64), lambda: plan(limit=2**64))
        self.expect("query_len[0]", "a whole number", "1.5", lambda: plan(query_len=(1.5,)))
        self.expect("force", "a path's name", "5", lambda: plan(force=5))
        self.expect("device", "headrace.Device", "0", lambda: plan(device=0))
        self.expect("topk", "num_heads, kv_lora_rank", "3", lambda: plan(topk=3))
        self.expect("num_head", "num_heads", "2", lambda: plan(num_head=2))
        fewer = {name: value for name, value in attention.items() if name != "scale"}
        self.expect("scale", "a value", "nothing", lambda: headrace.plan([2], [2], **fewer))
        self.expect("query_len", "a sequence", "4", lambda: plan(4, 4))
        self.expect("seq_len", "a sequence", "4", lambda: plan([4], 4))
        self.expect("exact", "True or False", "'yes'", lambda: plan(exact="yes"))
        for name in ("max_tokens", "max_seq_len", "max_requests"):
            self.expect(name, "at least 0", "-1", lambda name=name: plan(**{name: -1}))
        for name in ("max_tokens", "max_seq_len"):
            most = {"max_tokens": 9, "max_seq_len": 9, name: 0}
            self.expect(name, "at least 1", "0", lambda most=most: headrace.workspace_bound(**most, **attention))

    def test_plan_names_keywords(self):
        attention = Case(self.rng, [(1, 0)], rope=4, rule="none").attention

        def plan(query_len=(2,), seq_len=(2,), **changes):
            return headrace.plan(query_len, seq_len, **{**attention, **changes})

        self.expect("scale", "above 0", "0", lambda: plan(scale=0))
        self.expect("seq_len[0]", "at least the 2", "1", lambda: plan(seq_len=(1,)))
        self.expect("seq_len[0]", "at most the limit 1", "2", lambda: plan(max_seq_len=1))
        self.expect("query_len", "at most the limit of 1 tokens", "2", lambda: plan(max_tokens=1))
        self.expect("rule", "[1, topk = 4]", "5", lambda: plan(rule="kpool(4, 5)"))
        self.expect("rule", "at least 0", "-2", lambda: plan(rule="opaque(-2)"))
        self.expect("cache_format", "kv_lora_rank 512", "16", lambda: plan(cache_format="fp8_ds_mla"))

    def test_kinds(self):
        attention = Case(self.rng, [(1, 0)], rope=4, rule="none").attention
        with self.assertRaises(headrace.UnsupportedError):
            headrace.plan([2], [2], force="dense_mha", **{**attention, "rule": "opaque"})
        with self.assertRaises(headrace.Error) as raised:
            headrace.plan([2], [1], **attention)
        self.assertIs(type(raised.exception), headrace.Error)

    @unittest.skipIf(headrace.device_count() > 0, "there is a GPU")
    def test_device(self):
        self.expect("device", "CUDA", "", lambda: headrace.Device(0))

    def test_attend(self):
        case = Case(self.rng, SHAPES, rope=4, rule="opaque(7)")
        plan = case.plan()
        arguments = case.arguments(plan)
        tokens = len(case.q)

        def attend(**changes):
            headrace.attend(plan, **{**arguments, **changes})

        attend()
        self.expect("q", "float32", "int32", lambda: attend(q=np.zeros(case.q.shape, np.int32)))
        self.expect("q", "float32, bfloat16", "type code 2 with 64 bits", lambda: attend(q=case.q.astype(np.float64)))
        self.expect("q", "3", "2", lambda: attend(q=case.q[0]))
        self.expect("q", "1 to 4 dimensions", "5", lambda: attend(q=case.q[None, None]))
        self.expect("q", "a tensor with __dlpack__", "list", lambda: attend(q=case.q.tolist()))
        self.expect("kv_b_proj", "a tensor", "none", lambda: attend(kv_b_proj=None))
        self.expect("cache", "float32", "int32", lambda: attend(cache=np.zeros(case.cache.shape, np.int32)))
        self.expect(
            "cache", "contiguous", "stride 2", lambda: attend(cache=np.zeros((9, 5, 40), np.float32)[:, :, ::2])
        )
        self.expect("cache", "80", "76", lambda: attend(cache=case.cache[:, :, 1:]))
        self.expect("seq_len", "int32", "int64", lambda: attend(seq_len=np.array(case.seq_len)))
        self.expect("count", f"[{tokens}]", f"[{tokens - 1}]", lambda: attend(count=case.count[1:]))
        self.expect("sink", "[3]", "[2]", lambda: attend(sink=np.zeros(2, np.float32)))
        self.expect("workspace", f"{plan.workspace_bytes}", "64", lambda: attend(workspace=aligned(64)))
        self.expect("workspace", "uint8", "float32", lambda: attend(workspace=np.zeros(9, np.float32)))
        self.expect("index", "int32", "float32", lambda: attend(index=case.index.astype(np.float32)))
        self.expect("index", "a selection", "none", lambda: attend(index=None))
        self.expect("index", "a selection", "none", lambda: attend(index=None, count=None))
        for scale in (0, -1, math.inf):
            self.expect("cache_scale", "> 0", str(scale), lambda scale=scale: attend(cache_scale=scale))
        self.expect("cache_scale", "a number", "'x'", lambda: attend(cache_scale="x"))
        self.expect("stream", "the processor's", "'x'", lambda: attend(stream="x"))
        shifted = np.zeros(case.q.nbytes + 4, np.uint8)[1 : 1 + case.q.nbytes].view(np.float32).reshape(case.q.shape)
        self.expect("q", "divisible by the 4 bytes", "remainder", lambda: attend(q=shifted))
        for name in ("q", "kv_b_proj", "cache", "workspace", "lse"):
            taken = arguments[name].view(np.float32)
            self.expect("out", f"memory than that of {name}", "the same", lambda taken=taken: attend(out=taken))
        taken = arguments["out"]
        self.expect("out", "memory than that of lse", "the same", lambda: attend(lse=taken))
        self.expect("out", "may be written", "read-only", lambda: attend(out=Versioned(arguments["out"], flags=1)))
        self.expect(
            "lse", "the processor", "CUDA device 3", lambda: attend(lse=Versioned(arguments["lse"], device=(2, 3)))
        )
        self.expect("q", "the processor", "device type 7", lambda: attend(q=Versioned(case.q, device=(7, 0))))
        self.expect("q", "DLPack 1", "2", lambda: attend(q=Versioned(case.q, major=2)))
        self.expect("q", "float32", "bfloat16", lambda: attend(q=Versioned(case.q, type=(4, 16, 1))))
        self.expect("q", "float32, bfloat16", "2 lanes", lambda: attend(q=Versioned(case.q, type=(2, 32, 2))))


class Readme(unittest.TestCase):
    def test_the_example_for_numpy_runs(self):
        text = (pathlib.Path(__file__).resolve().parents[1] / "README.md").read_text()
        examples = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import numpy" in block]
        self.assertEqual(len(examples), 1)
        names = {}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(examples[0], "README.md", "exec"), names)
        self.assertIn("request", printed.getvalue())
        self.assertTrue(np.isfinite(names["out"]).all())
        self.assertGreater(np.abs(names["out"]).max(), 0)


class Selections(Binding):
    def test_fill(self):
        self.assertEqual(_bench.selection_width("pooled:4:0.9", 8), 11)
        index = np.zeros((40, 8), np.int32)
        count = np.zeros(40, np.int32)
        _bench.fill_selection("drift:0.75", 8, 1, 0, 0, index, count)
        for position, (row, n) in enumerate(zip(index, count)):
            self.assertEqual(n, min(8, position + 1))
            self.assertEqual(sorted(set(row[:n])), list(row[:n]))
            self.assertTrue((row[:n] <= position).all() and (row[n:] == -1).all())
        # round(0.75 * 8) keys of the row before are kept.
        self.assertTrue(all(len(set(a) & set(b)) >= 6 for a, b in zip(index[8:], index[9:])))
        with self.assertRaises(headrace.Error):
            _bench.fill_selection("drift", 8, 1, 0, 0, index, count)


if __name__ == "__main__":
    print(f"HEADRACE_TEST_SEED={SEED}")
    unittest.main()
