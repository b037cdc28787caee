"""Measure what computing costs here: `python -m agents measure CONFIG`, a `Wanted` as JSON.

Prints one JSON line per sample (`Line`). Every round measures each length, and each batch at each context,
once, so that a slow moment of the machine falls on all of them alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec

from agents.compute.cache import Cache
from agents.compute.timing import LACKING, Device, Marks, TimedModel, random_cache
from agents.measurements import EXIT_MACHINE, Began, Decode, Kv, Line, Prefill, Wanted
from agents.shapes import SHAPES

SEED = 1


def main() -> None:
    """Measure, and print line by line."""
    wanted = msgspec.json.decode(Path(sys.argv[-1]).read_bytes(), type=Wanted)
    try:
        for line in measure(wanted):
            sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
            sys.stdout.buffer.flush()
    except LACKING as error:
        print(str(error).partition("\n")[0], file=sys.stderr)
        sys.exit(EXIT_MACHINE)


def measure(wanted: Wanted) -> Iterator[Line]:
    """All lines, in rounds. Raises one of `LACKING` where there is no such device, or too little memory."""
    device = Device(wanted.device, wanted.threads)
    shape = SHAPES[wanted.model].first(wanted.layers)
    model = TimedModel(shape, seed=SEED, device=device, exact=wanted.exact)
    yield Began(
        device.name, device.full_name, device.threads, model.dtype, device.versions(), device.clocks()
    )
    draw = Random(SEED)
    held = [random_cache(shape, device, context - 1) for context in wanted.contexts]
    prompts = [[draw.randrange(shape.vocab) for _ in range(length)] for length in wanted.lengths]
    for number in range(-wanted.warmup, wanted.repeats):
        for sample in _round(model, prompts, held, wanted, device):
            if number >= 0:
                yield sample


def _round(
    model: TimedModel, prompts: list[list[int]], held: list[Cache], wanted: Wanted, device: Device
) -> Iterator[Line]:
    """Everything once; requests hold what the caches `held` do, and one token more."""
    for prompt in prompts:
        cache = Cache(model.shape, device.name)
        time.sleep(wanted.rest_s)
        marks = Marks(device)
        for _ in model.prefill(prompt, cache):
            marks.add()
        layers_s, total_s = marks.end()
        yield Prefill(len(prompt), total_s, layers_s)
        sizes = (cache.size_bytes(layer, len(prompt)) for layer in range(len(layers_s)))
        yield Kv(len(prompt), tuple(sizes))
    for one in held:
        for batch in wanted.batches:
            caches = [one.copy() for _ in range(batch)]
            model.step_timed(caches)  # a cache grows at its first step, and not for long afterwards
            layers_s, total_s = model.step_timed(caches)
            yield Decode(one.tokens + 1, batch, total_s, layers_s)
