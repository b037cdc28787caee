"""What `agents.measure` is asked for, and the lines that it prints; no torch here: anyone may read them."""

from __future__ import annotations

from typing import Literal

import msgspec

EXIT_MACHINE = 4
"""The machine lacks something; stderr says what."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `layers`: the first so many; `warmup` and `repeats` are rounds."""

    model: str
    layers: int
    device: Literal["auto", "cpu", "cuda"]
    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    warmup: int
    repeats: int
    threads: int
    """0: as many as torch takes by itself."""
    exact: bool
    rest_s: float = 0.0
    """How long nothing is done before each prefill."""

    @property
    def timed(self) -> int:
        """How many lines of type `Prefill` and `Decode` there will be."""
        return self.repeats * (len(self.lengths) + len(self.batches) * len(self.contexts))


class Began(msgspec.Struct, frozen=True, tag=True):
    """The first line: where this is measured."""

    device: str
    device_name: str
    threads: int
    dtype: str
    versions: dict[str, str]
    clocks: dict[str, str]


class Kv(msgspec.Struct, frozen=True, tag=True):
    """Bytes that each layer of a prompt of `tokens` puts on the wire."""

    tokens: int
    layers_bytes: tuple[int, ...]


class Prefill(msgspec.Struct, frozen=True, tag=True):
    """A prompt of `tokens`: seconds in all, and until each layer was final since the one before."""

    tokens: int
    total_s: float
    layers_s: tuple[float, ...]


class Decode(msgspec.Struct, frozen=True, tag=True):
    """One step of `batch` requests that held `tokens` each: seconds in all, and of each layer."""

    tokens: int
    batch: int
    total_s: float
    layers_s: tuple[float, ...]


Line = Began | Kv | Prefill | Decode
