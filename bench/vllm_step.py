#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the host's time in a step of vLLM goes: one batch of prompts, eagerly, one output token a prompt.

    vllm_step.py MODEL BACKEND KV [--batch JSON] [--steps N] [--profile] [--json FILE]

MODEL is a config folder, BACKEND one of vLLM's attention backends or CUSTOM, which a plugin registers. Weights are
vLLM's dummy ones. One backend a process, for vLLM 0.26.

Functions of vLLM and of Headrace's Python package are wrapped by a clock. A span's own time is its time without the
spans inside it, so that the shares add up to the whole: what no span but the outermost holds is "not in any span". A
span costs about half a microsecond, which is counted to the one around it. Numbers are medians over steps.

--profile adds, from PyTorch's profiler over one more step, when the GPU works and where the host is in calls of CUDA's
runtime, in all and while headrace.attend runs. The profiler slows the host, so its times are not the table's.
"""
import argparse
import collections
import functools
import importlib
import json
import os
import statistics
import time

# Label: functions, each "module:function" or "module:Class.method". What a version lacks is left out, and told.
SPANS = {
    "whole step": ["vllm.entrypoints.llm:LLM.generate"],
    "requests in: prompts to engine": [
        "vllm.v1.engine.llm_engine:LLMEngine.add_request",
    ],
    "requests out: detokenise, collect": [
        "vllm.v1.engine.output_processor:OutputProcessor.process_outputs",
    ],
    "scheduler": [
        "vllm.v1.core.sched.scheduler:Scheduler.schedule",
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
    ],
    "engine loop": [
        "vllm.v1.engine.llm_engine:LLMEngine.step",
        "vllm.v1.engine.core:EngineCore.step",
    ],
    "runner: batch state": ["vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states"],
    "runner: inputs to the GPU": [
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_inputs",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._preprocess",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_slot_mappings",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._determine_batch_execution_and_padding",
    ],
    "runner: attention metadata": ["vllm.v1.worker.gpu_model_runner:GPUModelRunner._build_attention_metadata"],
    "runner: execute_model": ["vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model"],
    "runner: sample_tokens": ["vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens"],
    "runner: model forward": ["vllm.v1.worker.gpu_model_runner:GPUModelRunner._model_forward"],
    "sampler": ["vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample"],
    "runner: sampled tokens to the host": ["vllm.v1.worker.gpu_model_runner:GPUModelRunner._bookkeeping_sync"],
    "wait for the GPU": [
        "torch.cuda:synchronize",
        "torch.cuda:Event.synchronize",
        "torch.cuda:Stream.synchronize",
        "vllm.v1.worker.gpu_model_runner:AsyncGPUModelRunnerOutput.get_output",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.synchronize_input_prep",
    ],
    "headrace.plan": ["headrace:plan", "headrace:Plan.remake"],
    "headrace: upload of tables": ["headrace:Plan.upload"],
    "headrace.attend: Python": ["headrace:attend"],
    "headrace.attend: tensors by DLPack": ["headrace._tensors:Borrowed.fill"],
    "headrace.attend: library": ["headrace._library:library.hr_dl_attend"],
}
OUTERMOST = "whole step"


class Clock:
    """Spans of one thread, each with its calls and its own time."""

    def __init__(self):
        self.own = collections.defaultdict(float)
        self.calls = collections.Counter()
        self._open = []

    def clear(self):
        self.own.clear()
        self.calls.clear()

    def wrap(self, label, function):
        @functools.wraps(function)
        def timed(*args, **options):
            begin = time.perf_counter_ns()
            self._open.append(0)
            try:
                return function(*args, **options)
            finally:
                passed = time.perf_counter_ns() - begin
                self.own[label] += (passed - self._open.pop()) / 1e6
                self.calls[label] += 1
                if self._open:
                    self._open[-1] += passed

        return timed

    def wrap_named(self, label, name):
        """Wraps "module:path". Whether there is one."""
        module, path = name.split(":")
        *owners, last = path.split(".")
        try:
            owner = functools.reduce(getattr, owners, importlib.import_module(module))
            function = getattr(owner, last)
        except (ImportError, AttributeError):
            return False
        setattr(owner, last, self.wrap(label, function))
        return True

    def wrap_layers(self, model):
        """A span for each class of the model's layers."""
        for cls in {type(layer) for layer in model.modules()}:
            if "forward" in vars(cls):
                cls.forward = self.wrap(f"layer: {cls.__name__}", cls.forward)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("backend", metavar="BACKEND")
    parser.add_argument("kv", metavar="KV")
    parser.add_argument("--batch", type=json.loads, default=[2048] * 8, metavar="JSON", help="lengths of the prompts")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


STEP, ATTEND = "a step", "headrace.attend"


def elapsed(intervals):
    """Microseconds in which at least one of the intervals runs."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(intervals):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def profile(step):
    """What PyTorch's profiler sees of a step: when the GPU works, where the host waits, the runtime's calls inside
    headrace.attend."""
    import torch
    from torch.profiler import ProfilerActivity, profile as record, record_function

    with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        with record_function("first"):
            step()
        with record_function(STEP):
            step()
    cuda = torch.autograd.DeviceType.CUDA
    events = recorded.events()
    whole = next(e.time_range for e in events if e.name == STEP and e.device_type != cuda)
    events = [e for e in events if whole.start <= e.time_range.start <= whole.end]
    on_gpu = [e for e in events if e.device_type == cuda and e.name not in (STEP, ATTEND)]
    calls = [e for e in events if e.device_type != cuda and e.name.startswith("cu")]
    ranges = [e.time_range for e in events if e.name == ATTEND and e.device_type != cuda]

    def inside(event):
        return any(r.start <= event.time_range.start and event.time_range.end <= r.end for r in ranges)

    def by_name(chosen, most):
        sums = collections.defaultdict(lambda: [0, 0.0])
        for event in chosen:
            entry = sums[event.name[:70]]
            entry[0] += 1
            entry[1] += event.time_range.elapsed_us() / 1e3
        ordered = sorted(sums.items(), key=lambda item: -item[1][1])[:most]
        return {name: {"count": count, "ms": round(ms, 4)} for name, (count, ms) in ordered}

    first, last = min(e.time_range.start for e in on_gpu), max(e.time_range.end for e in on_gpu)
    busy = elapsed((e.time_range.start, e.time_range.end) for e in on_gpu)
    return {
        "step_ms": whole.elapsed_us() / 1e3,
        "gpu_busy_ms": busy / 1e3,
        "before_first_operation_ms": (first - whole.start) / 1e3,
        "gpu_idle_between_ms": (last - first - busy) / 1e3,
        "after_last_operation_ms": (whole.end - last) / 1e3,
        "gpu_operations": len(on_gpu),
        "host_in_runtime_calls": by_name(calls, 8),
        "attend_calls": len(ranges),
        "host_in_runtime_calls_of_attend": by_name(filter(inside, calls), 8),
        "longest_on_gpu": by_name(on_gpu, 12),
    }


def main():
    args = parse_arguments()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the clock reaches this process only
    import torch

    try:
        import headrace
    except ImportError:
        headrace = None
    from vllm import LLM, SamplingParams

    longest, tokens = max(args.batch), sum(args.batch)
    llm = LLM(model=args.model, load_format="dummy", enforce_eager=True, skip_tokenizer_init=True,
              max_model_len=longest + 1, max_num_batched_tokens=tokens, max_num_seqs=len(args.batch),
              gpu_memory_utilization=0.4, attention_config={"backend": args.backend}, kv_cache_dtype=args.kv,
              enable_prefix_caching=False, seed=0)
    params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
    vocabulary = llm.llm_engine.model_config.hf_config.vocab_size
    random = torch.Generator().manual_seed(1)
    prompts = [{"prompt_token_ids": torch.randint(3, vocabulary, (n,), generator=random).tolist()} for n in args.batch]

    def step():
        llm.generate(prompts, params, use_tqdm=False)
        torch.cuda.synchronize()

    for _ in range(3):
        step()
    bare = []
    for _ in range(args.steps):
        begin = time.perf_counter()
        step()
        bare.append(1e3 * (time.perf_counter() - begin))

    result = {"backend": args.backend, "kv": args.kv, "batch": args.batch, "card": torch.cuda.get_device_name(0),
              "torch": torch.__version__, "wall_ms": statistics.median(bare)}
    if args.profile:
        if headrace is not None:
            attend = headrace.attend

            def recorded(*a, **k):
                with torch.profiler.record_function(ATTEND):
                    return attend(*a, **k)

            headrace.attend = recorded
        result["profile"] = profile(step)
        if headrace is not None:
            headrace.attend = attend

    clock = Clock()
    llm.apply_model(clock.wrap_layers)
    for label, names in SPANS.items():
        for name in names:
            if not clock.wrap_named(label, name):
                print(f"not there: {name}")
    steps = []
    for _ in range(args.steps):
        clock.clear()
        begin = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        generated = time.perf_counter()
        torch.cuda.synchronize()
        steps.append((1e3 * (generated - begin), dict(clock.own), dict(clock.calls)))
    walls = [wall for wall, _, _ in steps]
    labels = {label for _, own, _ in steps for label in own}
    own = {label: statistics.median(s[1].get(label, 0.0) for s in steps) for label in labels}
    calls = {label: statistics.median(s[2].get(label, 0) for s in steps) for label in labels}
    wall = statistics.median(walls)
    rest = own.pop(OUTERMOST)
    result.update(wall_with_spans_ms=wall, own_ms=own, calls=calls, not_in_any_span_ms=rest)

    print(f"{args.backend}, cache {args.kv}, prompts {args.batch}, {result['card']}, {args.steps} steps")
    print(f"a step: {result['wall_ms']:.2f} ms, with spans {wall:.2f} ms")
    print(f"{'span':<44} {'calls':>6} {'own ms':>8} {'share':>7}")
    for label in sorted(own, key=own.get, reverse=True):
        print(f"{label:<44} {calls[label]:>6.0f} {own[label]:>8.3f} {own[label] / wall:>7.1%}")
    print(f"{'not in any span':<44} {'':>6} {rest:>8.3f} {rest / wall:>7.1%}")
    if args.profile:
        print(json.dumps(result["profile"], indent=1))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
