"""Prompts for real kernels: token ids that follow from a seed and the request."""

from __future__ import annotations

import random

from agents import config
from agents.shapes import SHAPES

FIRST_TOKEN = 2
"""Those below have a meaning of their own."""


def prompt(settings: config.Config, request: config.Request) -> list[int]:
    """The request's token ids, `input_tokens` of them; the same in every process."""
    assert settings.compute is not None
    dice = random.Random(f"{settings.compute.seed}/{request.id}")
    return dice.choices(range(FIRST_TOKEN, SHAPES[settings.model].vocab), k=request.input_tokens)
