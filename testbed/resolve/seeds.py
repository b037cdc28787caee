"""All randomness of a run: one stream per name, so that a new user of chance does not shift the others."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(run_seed: int, *names: str | int) -> int:
    """A seed below 2^63 for one named use: the same run seed and names always give the same one."""
    text = "/".join(str(part) for part in (run_seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(run_seed: int, *names: str | int) -> np.random.Generator:
    """A random generator for one named use."""
    return np.random.Generator(np.random.PCG64(derive_seed(run_seed, *names)))
