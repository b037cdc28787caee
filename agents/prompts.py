"""Prompts for real kernels: token ids that follow from a seed, the ids of blocks and the request."""

from __future__ import annotations

import random

from agents import config
from agents.cache.pool import BLOCK_TOKENS
from agents.shapes import SHAPES

FIRST_TOKEN = 2
"""Those below have a meaning of their own."""


def prompt(settings: config.Config, request: config.Request) -> list[int]:
    """The request's token ids, `input_tokens` of them; the same in every process.

    Full blocks follow from their ids, as far as it has any, so that what is said to be the same prefix is
    one; the rest from the request itself.
    """
    assert settings.compute is not None
    seed, known = settings.compute.seed, range(FIRST_TOKEN, SHAPES[settings.model].vocab)
    tokens: list[int] = []
    for block in request.hash_ids[: request.input_tokens // BLOCK_TOKENS]:
        tokens += random.Random(f"{seed}/block/{block}").choices(known, k=BLOCK_TOKENS)
    own = random.Random(f"{seed}/{request.id}")
    return tokens + own.choices(known, k=request.input_tokens - len(tokens))
