"""Time on the device that computes, and what that device is."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from agents.compute.cache import Cache
from agents.compute.model import START_TOKEN, Model, _Layer
from agents.shapes import Shape

MS_PER_S: Final = 1000.0
GPU_CLOCKS: Final = ("clocks.sm", "clocks.mem", "power.limit")


class LackingError(Exception):
    """This machine cannot do what was asked for."""


LACKING: Final = (LackingError, torch.OutOfMemoryError, MemoryError)


class Device:
    """Where to compute; LackingError where there is no such device. `threads` 0: as many as torch takes."""

    def __init__(self, wanted: Literal["auto", "cpu", "cuda"], threads: int) -> None:
        if wanted == "cuda" and not torch.cuda.is_available():
            raise LackingError("torch finds no CUDA device")
        self.name = "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
        if threads:
            torch.set_num_threads(threads)
        self.threads = torch.get_num_threads()

    @property
    def full_name(self) -> str:
        """As the device, or the system, calls it."""
        if self.name == "cuda":
            return torch.cuda.get_device_name()
        return _cpu("model name") or platform.processor() or platform.machine()

    def versions(self) -> dict[str, str]:
        """Of what computes."""
        found = {"python": platform.python_version(), "torch": str(torch.__version__)}
        return {**found, "cuda": str(torch.version.cuda)} if self.name == "cuda" else found

    def clocks(self) -> dict[str, str]:
        """Clocks and limits as they are now, as far as the system tells."""
        if self.name == "cpu":
            mhz = _cpu("cpu MHz")
            return {"cpu_mhz": mhz} if mhz else {}
        query = ["nvidia-smi", f"--query-gpu={','.join(GPU_CLOCKS)}", "--format=csv,noheader"]
        try:
            said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return {}
        cells = said.partition("\n")[0].split(",")
        return dict(zip(GPU_CLOCKS, (cell.strip() for cell in cells), strict=False))

    def wait(self) -> None:
        """Until all is done that was begun."""
        if self.name == "cuda":
            torch.cuda.synchronize()


class Marks:
    """Seconds between moments of one computation. A GPU notes them itself, so that nothing waits for them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        device.wait()
        self._events: list[torch.cuda.Event] = []
        self._times_s: list[float] = []
        self.add()
        self._began_s = time.perf_counter()

    def add(self) -> None:
        """Now, behind all that was begun before."""
        if self._device.name == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch
            event.record()
            self._events.append(event)
        else:
            self._times_s.append(time.perf_counter())

    def end(self) -> tuple[tuple[float, ...], float]:
        """Seconds before each mark since the one before it, and in all until everything was done."""
        self._device.wait()
        total_s = time.perf_counter() - self._began_s
        if self._events:
            between_ms = (before.elapsed_time(after) for before, after in pairwise(self._events))
            return tuple(between / MS_PER_S for between in between_ms), total_s
        return tuple(after - before for before, after in pairwise(self._times_s)), total_s


class _TimedLayer(_Layer):
    """A layer that says when it is done."""

    def __init__(self, layer: _Layer, done: Callable[[], None]) -> None:
        vars(self).update(vars(layer))
        self._done = done

    def behind_mixer(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = super().behind_mixer(x, mixed)
        self._done()
        return x


class TimedModel(Model):
    """A model that can say how long each layer of a decode step takes."""

    def __init__(self, shape: Shape, *, seed: int, device: Device, exact: bool) -> None:
        super().__init__(shape, seed=seed, device=device.name, exact=exact)
        self._where = device
        self._marks: Marks | None = None
        self._layers = [_TimedLayer(layer, self._note) for layer in self._layers]

    @property
    def dtype(self) -> str:
        """Of weights and activations."""
        return str(self._head.dtype).removeprefix("torch.")

    def step_timed(self, caches: Sequence[Cache]) -> tuple[tuple[float, ...], float]:
        """One decode step: seconds of each layer, for the whole batch, and of everything."""
        self._marks = Marks(self._where)
        self.step([START_TOKEN] * len(caches), caches)
        between_s, total_s = self._marks.end()
        self._marks = None
        # Each pass through the model begins with a mark: what is before it is the head of the one before.
        each = len(self._layers) + 1
        return tuple(sum(between_s[layer::each]) for layer in range(1, each)), total_s

    def _logits(self, tokens: Sequence[int], caches: Sequence[Cache]) -> Tensor:
        self._note()
        return super()._logits(tokens, caches)

    def _note(self) -> None:
        if self._marks is not None:
            self._marks.add()


def random_cache(shape: Shape, device: Device, tokens: int) -> Cache:
    """A cache that holds `tokens` of random numbers: a step takes as long as with any other."""
    cache = Cache(shape, device.name)
    for layer, attention in enumerate(shape.layers):
        size = attention.layer_kv.size_bytes(tokens)
        # Two bf16 are an fp32 of about the size of the second, so this does for states as well.
        noise = torch.randn(size // 2).to(torch.bfloat16).view(torch.uint8)
        cache.fill(layer, noise.numpy().data, tokens)
    return cache


def _cpu(field: str) -> str:
    """What /proc/cpuinfo says of the first processor; empty where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
