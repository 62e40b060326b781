#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Headrace beside its peers, in one process: the same problems, interleaved repetitions, medians and quartiles, and
before each timing a look at sampled rows against float64.

    PYTHONPATH=build/cuda/python bench/peers.py --json bench/results/h200-peers.json

A ratio keeps or misses its goal only where the quartiles agree on it (samples.py). Peers that cannot be imported, or
refuse a problem, are said to be "not measured", with the reason.
"""

import argparse
import contextlib
import gc
import json
import pathlib
import statistics
import sys
import time
import traceback

import torch

import absorbed
import contenders
import goals
import headrace
import measure
import report
import revision
import samples
import versions
from problem import POOL, TOLERANCE, TOPK, Problem, Shape, worst_row
from topk import compare_topk

# Batch, sequence length, heads, qk and v dims; then what FlashAttention-3 and cuDNN 9.19 took on an H200 (ms), for an
# estimate where FlashAttention-3 cannot be run (goals.py).
DENSE = (
    (8, 2048, 16, 256, 256, 0.484, 0.527),
    (8, 2048, 64, 256, 256, 1.763, 1.897),
    (2, 8192, 16, 256, 256, 1.478, 1.743),
    (1, 16384, 16, 256, 256, 3.187, 3.329),
    (1, 32768, 16, 256, 256, 12.34, 13.92),
    (8, 2048, 16, 192, 128, 0.337, 0.394),
    (8, 2048, 128, 192, 128, 2.346, 2.582),
    (1, 16384, 16, 192, 128, 2.130, 2.316),
    (1, 16384, 128, 192, 128, 16.06, 19.09),
    (1, 32768, 16, 192, 128, 8.053, 9.060),
)


class Bench:
    """The state of a run: what it is measured on, and the cases measured so far."""

    def __init__(self, options):
        self.on_cpu = options.device == "cpu"
        self.torch_device = "cpu" if self.on_cpu else "cuda"
        self.device = None if self.on_cpu else headrace.Device(0)
        self.clock = measure.HostClock() if self.on_cpu else measure.CudaClock()
        self.repetitions = options.repetitions or (3 if options.quick else 20)
        self.cases = []

    def scaled(self, tokens):
        """Lengths of a trial run without a GPU are short."""
        return tokens // 64 if self.on_cpu else tokens

    def shape(self, batch, seq, heads, qk, v, context=0):
        return Shape(batch, self.scaled(seq), min(heads, 4) if self.on_cpu else heads, qk, v, self.scaled(context))

    def free(self):
        gc.collect()
        with contextlib.suppress(RuntimeError):  # a device that failed has failed the part already
            if not self.on_cpu:
                torch.cuda.empty_cache()

    def measure(self, part, problem, makers, *, unselected=(), floors=(), rated=(), selection=None):
        """Checks and times the contenders {name: maker} on a problem, and notes the case. Those in `unselected` attend
        to every key; those in `floors` do not compute the layer's answer and are not checked; those in `rated` do
        causal attention to every key and nothing else, so that its FLOPs over their time are a rate."""
        shape = problem.shape
        case = {"part": part, "case": f"{shape}{', ' + selection if selection else ''}", "contenders": {}, "ratios": {}}
        self.cases.append(case)
        rows = problem.sampled_rows()
        expected = {
            selected: problem.reference(rows, selected) for selected in {name not in unselected for name in makers}
        }
        runs = {}
        for name, make in makers.items():
            entry = case["contenders"][name] = {}
            try:
                run, by_tokens = make(problem)
                if name not in floors:
                    error = worst_row(by_tokens(run())[rows], expected[name not in unselected])
                    entry["worst_row"] = error
                    if not error <= TOLERANCE:
                        entry["not_measured"] = f"wrong: a sampled row is off by {error:.1e}"
                        continue
                run()
                self.clock.wait()
                runs[name] = run
            except Exception as error:  # a peer that refuses a problem says so in its own way
                entry["not_measured"] = f"{type(error).__name__}: {str(error).strip()[:200]}"
        for name, found in samples.interleaved(self.clock, runs, self.repetitions).items() if runs else ():
            entry = case["contenders"][name]
            entry.update(found)
            if name in rated:
                entry["tflops"] = shape.flops / found["median_ms"] / 1e9
        return case

    def compare(self, case, what, numerator, denominator, *, goal=None):
        """Notes the ratio of two contenders of a case, and what it may be at most."""
        entries = [case["contenders"].get(name, {}) for name in (numerator, denominator)]
        ratio = samples.quotient(*entries, goal=goal)
        if ratio:
            case["ratios"][what] = ratio

    def expect(self, case, what, value, goal, quartiles=None):
        """Notes another number; `quartiles` are those of what it is the median of."""
        if value is not None:
            case["ratios"][what] = {"value": value, "range": quartiles, "goal": goal}


def dense(bench):
    for *dims, fa3_ms, cudnn_ms in DENSE:
        problem = Problem(bench.shape(*dims), bench.torch_device)
        makers = {
            "kernel": contenders.kernel(bench.device),
            "attend": contenders.attend(bench.device),
            **contenders.DENSE_PEERS,
        }
        case = bench.measure("dense", problem, makers, rated=("kernel", *contenders.DENSE_PEERS))
        bench.compare(case, "kernel / cuDNN", "kernel", "cuDNN", goal=1.0)
        case["ratios"].update(goals.fa3_ratios(case["contenders"], fa3_ms, cudnn_ms))
        del problem
        bench.free()


def masked(bench):
    for batch, seq in ((2, 8192), (1, 16384)):
        topk = bench.scaled(TOPK)
        problem = Problem(
            bench.shape(batch, seq, 16, 256, 256),
            bench.torch_device,
            rule=f"lightning({topk})",
            selection="drift:0.9",
            topk=topk,
        )
        everything = Problem(problem.shape, bench.torch_device)
        makers = {
            "masked kernel": contenders.kernel(bench.device, masked=True),
            "dense kernel": lambda _, p=everything: contenders.kernel(bench.device)(p),
            "masked attend": contenders.attend(bench.device, force="masked_mha"),
            "dense attend": lambda _, p=everything: contenders.attend(bench.device)(p),
        }
        unselected = ("dense kernel", "dense attend")
        case = bench.measure(
            "masked", problem, makers, unselected=unselected, rated=("dense kernel",), selection="drift 0.9"
        )
        bench.compare(case, "masked / dense kernel", "masked kernel", "dense kernel", goal=1.10)
        bench.compare(case, "masked / dense attend", "masked attend", "dense attend", goal=1.10)
        del problem, everything, makers
        bench.free()


def step(bench):
    """From query and latent to [T, H, v], on the path that the plan takes."""
    topk = bench.scaled(TOPK)
    rule = f"kpool({topk}, {POOL}, tail)"
    short = Problem(bench.shape(8, 2048, 16, 256, 256), bench.torch_device, rule=rule)
    makers = {
        "attend": contenders.attend(bench.device),
        "cuBLAS + cuDNN": contenders.project_and_sdpa(contenders.CUDNN),
    }
    case = bench.measure("step", short, makers)
    note_step(bench, case, short, goal=0.75)
    bench.compare(case, "attend / (cuBLAS + cuDNN)", "attend", "cuBLAS + cuDNN")
    del short
    bench.free()

    pooled = Problem(
        bench.shape(1, 16384, 16, 256, 256), bench.torch_device, rule=rule, selection=f"pooled:{POOL}:0.9", topk=topk
    )
    makers = {"attend": contenders.attend(bench.device), "flash_mla": absorbed.flash_mla_and_projections}
    case = bench.measure("step", pooled, makers, selection=f"pooled {POOL}, drift 0.9")
    note_step(bench, case, pooled, goal=2.8)
    bench.compare(case, "attend / flash_mla", "attend", "flash_mla", goal=1.0)


def note_step(bench, case, problem, goal):
    case["paths"] = sorted({request.path for request in problem.attend(bench.device)[1].requests})
    attend = case["contenders"]["attend"]
    bench.expect(case, "attend, ms", attend.get("median_ms"), goal, attend.get("quartile_ms"))


def first_use(bench):
    """A length that was never used: plan, attend and wait for the first time, over the median of the next five."""
    topk = bench.scaled(TOPK)
    for path in ("dense_mha", "masked_mha"):
        selected = path == "masked_mha"
        longest = Problem(
            bench.shape(1, 16384, 16, 256, 256),
            bench.torch_device,
            rule=f"lightning({topk})" if selected else "none",
            selection="drift:0.9" if selected else None,
            topk=topk,
        )
        if bench.device:
            bench.device.warm_up(**longest.attention)
        draw = torch.randperm(bench.scaled(16384 - 4096), generator=torch.Generator().manual_seed(4))
        lengths = (draw[:20] + bench.scaled(4096)).tolist()
        arguments, workspace, tables = reserve(bench, longest, path)
        time_step(bench, longest, path, bench.scaled(4096) - 1, arguments, workspace, tables)  # whatever the process does once
        ratios, run_ms = [], []
        for length in lengths:
            first, *later = (time_step(bench, longest, path, length, arguments, workspace, tables) for _ in range(6))
            ratios.append(first / statistics.median(later))
            run_ms.append(statistics.median(later))
        case = {"part": "first use", "case": f"20 new lengths, {path}", "contenders": {}, "ratios": {}}
        case.update(lengths=lengths, first_over_later=ratios, later_ms=run_ms)
        bench.cases.append(case)
        spread = samples.summary(ratios)
        bench.expect(case, "first / later, median", spread["median_ms"], 1.2, spread["quartile_ms"])
        bench.expect(case, "first / later, worst", max(ratios), 2.0)
        bench.expect(case, "shortest run, ms", min(run_ms), None)
        del longest, arguments, workspace, tables
        bench.free()


def reserve(bench, problem, path):
    """What every length shares: the tensors of the longest, and a workspace and tables large enough for all."""
    plan = problem.attend(bench.device, path)[1]
    workspace = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8, device=bench.torch_device)
    arguments = dict(kv_b_proj=problem.kv_b_proj, cache=problem.cache, block_table=problem.block_table)
    bound = headrace.table_bound(
        max_tokens=sum(problem.query_len),
        max_seq_len=max(problem.seq_lens),
        max_requests=len(problem.query_len),
        device=bench.device,
        **problem.attention,
    )
    tables = torch.empty(bound, dtype=torch.uint8, device=bench.torch_device)
    return arguments, workspace[-workspace.data_ptr() % 256 :], tables


def time_step(bench, problem, path, length, arguments, workspace, tables):
    """Milliseconds on the host's clock from lengths to output, for the first `length` tokens of a problem."""
    limits = torch.tensor([0, length], dtype=torch.int32).to(bench.torch_device)
    index = None if problem.index is None else problem.index[:length]
    count = None if problem.count is None else problem.count[:length]
    bench.clock.wait()
    begin = time.perf_counter()
    plan = headrace.plan([length], [length], device=bench.device, force=path, tables=tables, **problem.attention)
    headrace.attend(
        plan,
        q=problem.q[:length],
        query_start=limits,
        seq_len=limits[1:],
        index=index,
        count=count,
        out=problem.out[:length],
        workspace=workspace,
        **arguments,
    )
    bench.clock.wait()
    return (time.perf_counter() - begin) * 1e3


PARTS = {"dense": dense, "masked": masked, "topk": compare_topk, "step": step, "first_use": first_use}


def write_json(bench, options, failed):
    git_commit, git_trees = revision.commit_and_trees()
    result = {
        "schema": 2,
        "device": bench.torch_device,
        "machine": measure.machine(bench.torch_device),
        "peers": measure.peers(options.peer_versions),
        "definitions": {
            "tflops": "of scores and values of every causal pair; only of what computes these and nothing else",
            "ratios": report.LEGEND,
        },
        "headrace": headrace.__version__,
        "commit": options.commit or git_commit,
        "trees": revision.for_peers(options.trees or git_trees),
        "repetitions": bench.repetitions,
        "failed_parts": failed,
        "results": bench.cases,
    }
    pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


def parse_trees(text):
    trees = dict(item.split("=", 1) for item in text.split(","))
    if set(trees) != set(revision.FOLDERS):
        raise argparse.ArgumentTypeError(f"expected ids of {', '.join(revision.FOLDERS)}")
    return trees


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="3 repetitions instead of 20")
    parser.add_argument("--repetitions", type=int, metavar="N")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a trial run on short lengths")
    parser.add_argument("--json", metavar="FILE", help="write the results here, after every part")
    parser.add_argument(
        "--commit", metavar="ID", help="what is measured, where there is no git: bench/revision.py prints both options"
    )
    parser.add_argument("--trees", type=parse_trees, metavar="FOLDER=ID,...", help="likewise")
    parser.add_argument(
        "--peer-version",
        action="append",
        type=versions.parse_given,
        default=[],
        metavar="MODULE=VERSION",
        help="of a peer's module that no installed package brings, for the results",
    )
    options = parser.parse_args()
    options.peer_versions = dict(options.peer_version)
    return options


def main():
    options = parse_options()
    if options.device == "cuda" and not headrace.device_count():
        print("peers: there is no GPU that the library can use; --device cpu makes a trial run", file=sys.stderr)
        return 1
    bench = Bench(options)
    machine = measure.machine(bench.torch_device)
    print(", ".join(f"{key} {value}" for key, value in machine.items()), f"{bench.repetitions} repetitions", sep=", ")
    print("peers:", "; ".join(f"{peer}: {version}" for peer, version in measure.peers(options.peer_versions).items()))
    failed = []
    with torch.no_grad():
        for name in options.only or PARTS:
            begin = time.perf_counter()
            try:
                PARTS[name](bench)
            except Exception:
                traceback.print_exc()
                failed.append(name)
            print(f"{name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
            bench.free()
            if options.json:
                write_json(bench, options, failed)
    print("\n" + report.text_of(bench.cases, TOLERANCE))
    if failed:
        print(f"failed: {', '.join(failed)} (see above)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
