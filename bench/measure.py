# SPDX-License-Identifier: Apache-2.0
"""Clocks, and what a measurement was made on."""

import time

import torch

import versions
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


def peers(given):
    """{peer: version} of the peers that are installed; `given` as in versions.py."""
    own = {"cuDNN": versions.text_of_cudnn(torch.backends.cudnn.version()), "torch flash": f"torch {torch.__version__}"}
    return {**{name: version for name, version in own.items() if version}, **versions.versions(given)}
