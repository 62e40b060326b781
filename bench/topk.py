# SPDX-License-Identifier: Apache-2.0
"""The part of peers.py about top-k MQA: every row against the kernels that serving engines use for it."""

import absorbed
import contenders
import goals
from problem import POOL, TOPK, Problem

# Batch, new tokens, context, selection, heads; what FlashMLA padded to 64 heads took on an H200 with lengths (ms), and
# what ours may take, lists and masks included, absorption not. d_qk 576 has a rope key, 512 has none.
ROWS = {
    512: (
        (1, 16384, 0, "drift:0.9", 64, 6.90, 6.9),
        (1, 16384, 0, "drift:0.9", 32, 7.06, 4.2),
        (1, 16384, 0, "drift:0.9", 16, 7.06, 2.5),
        (1, 16384, 0, "drift:0.9", 8, 7.06, 1.7),
        (1, 16384, 0, "drift:0.9", 4, 7.06, 1.2),
        (1, 16384, 0, "drift:0.8", 16, 7.12, 2.9),
        (1, 16384, 0, "drift:0.8", 8, 7.12, 2.05),
        (1, 16384, 0, "drift:0.95", 16, 7.11, 2.35),
        (1, 16384, 0, "drift:0.95", 8, 7.11, 1.5),
        (1, 16384, 0, f"pooled:{POOL}:0.9", 16, 7.30, 2.5),
        (1, 16384, 0, f"pooled:{POOL}:0.9", 8, 7.30, 1.7),
        (1, 16384, 0, "uniform", 16, 7.21, 4.8),
        (1, 16384, 0, "uniform", 8, 7.21, 3.4),
        (8, 2048, 0, "local", 16, 3.93, None),
        (8, 2048, 0, "local", 8, 3.93, None),
    ),
    576: (
        (1, 16384, 0, "drift:0.9", 64, 7.49, 7.5),
        (1, 16384, 0, "drift:0.9", 128, 14.99, 15.0),
        (1, 16384, 0, "drift:0.9", 16, 7.54, 2.7),
        (1, 16384, 0, "drift:0.9", 8, 7.54, 1.8),
        (1, 16384, 0, "uniform", 16, 7.60, 5.1),
        (1, 16384, 0, "uniform", 8, 7.60, 3.6),
        (1, 8192, 24576, "drift:0.9", 16, 4.04, 1.5),
        (1, 8192, 24576, "drift:0.9", 8, 4.04, 1.05),
        (1, 8192, 122880, "drift:0.9", 16, 4.15, 1.6),
        (1, 8192, 122880, "drift:0.9", 8, 4.15, 1.1),
    ),
}
DIMS = {512: (256, 256), 576: (192, 128)}  # of queries and values before absorption

PACKED, WHOLE, FLOOR = "packed", "attend", "union fed (floor)"
WHOLE_PEER = "flash_mla + projections"


def compare_topk(bench):
    """Between absorbed queries and attended latents, and the whole path with absorption and projection."""
    for d_qk, rows in ROWS.items():
        for batch, seq, context, selection, heads, flash_mla_ms, goal_ms in rows:
            shape = bench.shape(batch, seq, heads, *DIMS[d_qk], context)
            problem = make_problem(bench, shape, selection)
            makers = {
                PACKED: absorbed.packed(bench.device),
                WHOLE: contenders.attend(bench.device, force="topk_mqa"),
                **absorbed.PEERS,
                WHOLE_PEER: absorbed.flash_mla_and_projections,
                FLOOR: absorbed.union_fed,
            }
            what = "every key" if selection == "local" else selection.replace(":", " ")
            case = bench.measure("topk", problem, makers, floors=(FLOOR,), selection=f"{what}, d_qk {d_qk}")
            times = (case["contenders"][name] for name in (PACKED, "flash_mla"))
            case["ratios"].update(goals.packed_ratios(*times, flash_mla_ms, goal_ms))
            bench.compare(case, "packed / flash_mla", PACKED, "flash_mla", goal=1.0)
            bench.compare(case, "attend / (flash_mla + projections)", WHOLE, WHOLE_PEER, goal=1.0)
            note_best_peer(bench, case)
            bench.compare(case, "packed / floor", PACKED, FLOOR)
            bench.expect(case, "keys a union", absorbed.mean_union(problem), None)
            del problem
            bench.free()


def make_problem(bench, shape, selection):
    topk = bench.scaled(TOPK)
    rule = f"kpool({topk}, {POOL}, tail)" if selection.startswith("pooled") else f"lightning({topk})"
    return Problem(shape, bench.torch_device, rule=rule, selection=selection, topk=topk)


def note_best_peer(bench, case):
    """Ours over the fastest of the peers that give the layer's answer."""
    times = {name: case["contenders"][name].get("median_ms") for name in absorbed.PEERS}
    times = {name: ms for name, ms in times.items() if ms is not None}
    if times:
        case["best_peer"] = min(times, key=times.get)
        bench.compare(case, "packed / best peer", PACKED, case["best_peer"], goal=1.0)
