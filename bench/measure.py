# SPDX-License-Identifier: Apache-2.0
"""Clocks, medians, and what a measurement was made on."""

import statistics
import time

import torch

from revision import output_of


class CudaClock:
    """The device's own time between two points of the current stream."""

    # Before the first point the device is kept busy (1 ms), so that what a call costs the host is not in its time.
    BUSY_CYCLES = 2_000_000

    def time(self, run):
        """Milliseconds that the work of `run` takes."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(self.BUSY_CYCLES)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)

    def wait(self):
        torch.cuda.synchronize()


class HostClock:
    """For a trial run without a GPU."""

    def time(self, run):
        begin = time.perf_counter()
        run()
        return (time.perf_counter() - begin) * 1e3

    def wait(self):
        pass


def summary(times):
    """Median and quartiles of some times."""
    low, median, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else 3 * times
    return {"median_ms": median, "quartile_ms": [low, high]}


def interleaved(clock, runs, repetitions):
    """Times each of {name: run} as often as asked, one after the other, so that all see the same clocks and the same
    heat; the order turns with every round. {name: summary}"""
    names = list(runs)
    times = {name: [] for name in names}
    for round_ in range(repetitions):
        turn = round_ % len(names)
        for name in names[turn:] + names[:turn]:
            times[name].append(clock.time(runs[name]))
    return {name: summary(t) for name, t in times.items()}


def machine(device):
    """What the measurement ran on."""
    if device == "cpu":
        return {"card": "none: a trial run whose times mean nothing", "torch": torch.__version__}
    driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    return {
        "card": torch.cuda.get_device_name(0),
        "driver": driver or "unknown",
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }
