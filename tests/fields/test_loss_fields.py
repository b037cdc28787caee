"""Every parameter of every loss model against its Markov chain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from testbed.plan import LinkState, Loss
from testbed.shaping.delay import loss_ratio

Results = dict[str, Any]
Floats = npt.NDArray[np.float64]
WIDE = 3.89
"""Standard deviations of the 99.99 % interval."""


def chain(model: str, values: dict[str, float]) -> tuple[Floats, Floats]:
    """Transitions between a model's states, and the chance to be lost in each."""
    if model == "random":
        return np.ones((1, 1)), np.array([values["ratio"]])
    if model == "gilbert_elliott":
        p, r = values["p"], values["r"]
        moves = np.array([[1 - p, p], [r, 1 - r]])
        return moves, np.array([values["loss_good"], values["loss_bad"]])
    p13, p31, p32, p23, p14 = (values[name] for name in ("p13", "p31", "p32", "p23", "p14"))
    moves = np.array(
        [[1 - p13 - p14, 0, p13, p14], [0, 1 - p23, p23, 0], [p31, p32, 1 - p31 - p32, 0], [1, 0, 0, 0]]
    )
    return moves, np.array([0.0, 0.0, 1.0, 1.0])


def mean_and_deviation(model: str, values: dict[str, float], count: int) -> tuple[float, float]:
    """Of the number lost of `count`: the chain's stationary share, and its variance with all covariances."""
    moves, lost = chain(model, values)
    size = len(lost)
    rows = np.vstack([moves.T - np.eye(size), np.ones(size)])
    stationary = np.linalg.lstsq(rows, np.array([*[0.0] * size, 1.0]), rcond=None)[0]
    mean = float(stationary @ lost)
    centred = lost - mean
    fundamental = np.linalg.inv(np.eye(size) - moves + np.outer(np.ones(size), stationary))
    variance = 2 * float(stationary * centred @ fundamental @ centred) - float(stationary @ centred**2)
    variance += float(stationary @ (lost * (1 - lost)))
    return count * mean, math.sqrt(count * variance)


@pytest.mark.parametrize("number", range(13))
def test_each_loss_model_loses_its_share(delay: Results, number: int) -> None:
    """The number lost is within the 99.99 % interval of the model's chain, for each parameter changed."""
    train = delay["losses"]["trains"][number]
    mean, deviation = mean_and_deviation(train["model"], train["values"], train["sent"])
    lost = train["sent"] - len(train["numbers"])
    assert lost == pytest.approx(mean, abs=WIDE * deviation)
    state = LinkState(
        rate_bps=1, buffer_bytes=1, delay_ns=0, loss=Loss(model=train["model"], **train["values"])
    )
    assert loss_ratio(state) * train["sent"] == pytest.approx(mean)


def test_changed_parameters_are_told_apart(delay: Results) -> None:
    """Each changed parameter moves the share, the bursts or the gaps in them by more than chance would."""
    trains = delay["losses"]["trains"]
    for model in ("gilbert_elliott", "four_state"):
        base, *others = [train for train in trains if train["model"] == model]
        for other in others:
            assert _apart(base, other), other["values"]


def _apart(one: Results, other: Results) -> bool:
    """Whether any count differs by more than both deviations, twice.

    Counted are losses, bursts (a loss after an arrival) and single arrivals between two losses.
    """
    counts = []
    for train in (one, other):
        there = np.zeros(train["sent"], dtype=bool)
        there[train["numbers"]] = True
        _, deviation = mean_and_deviation(train["model"], train["values"], train["sent"])
        bursts = int(np.sum(there[:-1] & ~there[1:]))
        gaps = int(np.sum(~there[:-2] & there[1:-1] & ~there[2:]))
        losses = (train["sent"] - len(train["numbers"]), deviation)
        counts.append((losses, (bursts, math.sqrt(bursts)), (gaps, math.sqrt(gaps))))
    return any(
        abs(found - found2) > 2 * (spread + spread2)
        for (found, spread), (found2, spread2) in zip(*counts, strict=True)
    )


def test_every_nth_is_lost(delay: Results) -> None:
    """Exactly every n-th, counted from the change on."""
    for train in delay["periodic"]["trains"]:
        every = train["every"]
        assert train["numbers"] == [one for one in range(train["sent"]) if (one + 1) % every]


def test_a_partition_lets_nothing_through(delay: Results) -> None:
    """All before, none during, all after."""
    assert [train["arrived"] for train in delay["partitions"]["trains"]] == [200, 0, 200]
