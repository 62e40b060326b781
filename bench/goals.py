# SPDX-License-Identifier: Apache-2.0
"""Goals that were set in times of another card, held against what peers take on this one. Needs nothing but Python."""

import samples


def fa3_ratios(contenders, fa3_ms, cudnn_ms):
    """Our kernel over FlashAttention-3: as measured; only where it could not be run, an estimate that takes it to be as
    far from cuDNN here as it was there (`fa3_ms` and `cudnn_ms`). {name: ratio}"""
    kernel, cudnn, fa3 = (contenders.get(name, {}) for name in ("kernel", "cuDNN", "flash_attn 3"))
    measured = samples.quotient(kernel, fa3, goal=0.99)
    if measured:
        return {"kernel / FA3": measured}
    estimate = samples.quotient(kernel, cudnn, factor=cudnn_ms / fa3_ms, goal=1.15)
    return {"kernel / FA3 (estimate)": estimate} if estimate else {}


def packed_ratios(packed, flash_mla, flash_mla_ms, goal_ms):
    """Packed top-k MQA over its goal, which is as much of FlashMLA's time here as it was there (`goal_ms` and
    `flash_mla_ms`). Where FlashMLA was not measured the goal stands as it is, in milliseconds of another card, and the
    ratio's name says so. {name: ratio}"""
    if goal_ms is None:
        return {}
    if "median_ms" in flash_mla:
        name, ratio = "packed / goal", samples.quotient(packed, flash_mla, factor=flash_mla_ms / goal_ms, goal=1.0)
    else:
        one = {"median_ms": 1.0, "quartile_ms": [1.0, 1.0]}
        name, ratio = "packed / goal, unscaled", samples.quotient(packed, one, factor=1.0 / goal_ms, goal=1.0)
    return {name: ratio} if ratio else {}
