#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one `headrace.attend` from Python costs the host, in a bare loop: medians in microseconds.

Each call queues its work on torch's current stream and returns. The loop waits for the GPU now and then, outside the
clock, so that the launch queue never fills up.
"""

import argparse
import itertools
import json
import statistics
import sys
import time

import torch

import headrace
from problem import PAGE_SIZE, RANK, TOPK

HEADS, NOPE, ROPE, V = 16, 192, 64, 256  # of GLM-5 on four ranks
LAYER = dict(num_heads=HEADS, kv_lora_rank=RANK, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE, v_head_dim=V,
             scale=1 / 16, rule=f"lightning({TOPK})")
#: (query tokens, keys before them) of each request, and the path that is forced.
STEPS = {
    "dense_mha": ([(64, 0)], None),
    "masked_mha": ([(64, 0)], "masked_mha"),
    "topk_mqa": ([(64, 0)], "topk_mqa"),
    "as routed": ([(64, 0), (64, 2100), (4096, 8000)], None),
}


def median_us(run, repetitions):
    times = []
    for i in range(repetitions):
        begin = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - begin) / 1e3)
        if i % 20 == 19:
            torch.cuda.synchronize()
    return statistics.median(times)


class Step:
    """A step's tensors, all of them on the GPU."""

    def __init__(self, requests, force, device):
        tokens = [new for new, _ in requests]
        keys = [new + before for new, before in requests]
        pages = [-(-n // PAGE_SIZE) for n in keys]
        on_gpu = dict(device="cuda", dtype=torch.int32)
        table = torch.zeros(len(requests), max(pages), **on_gpu)
        first = 0
        for b, n in enumerate(pages):
            table[b, :n] = torch.arange(first, first + n, **on_gpu)
            first += n
        position = torch.cat([torch.arange(n - t, n, **on_gpu) for t, n in zip(tokens, keys)])
        column = torch.arange(TOPK, **on_gpu)
        self.plan = headrace.plan(tokens, keys, device=device, force=force, **LAYER)
        self.tables = torch.empty(max(self.plan.table_bytes, 16), dtype=torch.uint8, device="cuda")
        self.plan.upload(self.tables)
        normal = dict(device="cuda", dtype=torch.bfloat16)
        self.call = dict(
            q=torch.randn(sum(tokens), HEADS, NOPE + ROPE, **normal),
            kv_b_proj=torch.randn(HEADS * (NOPE + V), RANK, **normal) * 0.04,
            cache=torch.randn(sum(pages), PAGE_SIZE, RANK + ROPE, **normal),
            block_table=table,
            query_start=torch.tensor([0, *itertools.accumulate(tokens)], **on_gpu),
            seq_len=torch.tensor(keys, **on_gpu),
            index=torch.where(column <= position[:, None], column, -1),
            out=torch.empty(sum(tokens), HEADS, V, **normal),
            workspace=torch.empty(self.plan.workspace_bytes, dtype=torch.uint8, device="cuda"),
        )

    def attend(self):
        headrace.attend(self.plan, **self.call)

    @property
    def paths(self):
        return sorted({request.path for request in self.plan.requests})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("host.py: there is no GPU here")
    device = headrace.Device(0)
    device.warm_up(**LAYER)
    rows = []
    for name, (requests, force) in STEPS.items():
        step = Step(requests, force, device)
        for _ in range(20):
            step.attend()
        torch.cuda.synchronize()
        rows.append({"step": name, "paths": step.paths, "attend_us": median_us(step.attend, args.repetitions)})
    if args.json:
        print(json.dumps({"card": torch.cuda.get_device_name(0), "torch": torch.__version__, "rows": rows}))
        return
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, medians of {args.repetitions} calls")
    for row in rows:
        print(f"{row['step']:<12} {row['attend_us']:7.1f} us  {', '.join(row['paths'])}")


if __name__ == "__main__":
    main()
