"""The link against arithmetic: the corners of what `make fidelity` measures in full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.kernel.uml import Uml
from tests.fidelity import netem_dice
from tests.fidelity.boots import CORNERS
from tests.fidelity.guest import Results, measure
from tests.fidelity.rows import rows

DICE: dict[str, Callable[..., list[int]]] = {
    "gilbert_elliott": netem_dice.gilbert_elliott,
    "four_state": netem_dice.four_state,
}

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.slow,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    place: Path = tmp_path_factory.mktemp("fidelity")
    return {name: measure(place / name, asked, lambda _: None) for name, asked in CORNERS.items()}


def check(found: dict[str, Results], name: str, count: int) -> None:
    """All rows of a check are there, and every one is within what it allows."""
    checked = rows(found, name)
    assert len(checked) == count
    assert [row for row in checked if not row.ok] == []


def test_goodput_is_the_rate_less_headers(found: dict[str, Results]) -> None:
    """While a queue stands, payload arrives at the rate less the headers' share, within 1 %."""
    check(found, "goodput", 4)


def test_a_datagram_takes_the_delay(found: dict[str, Results]) -> None:
    """On an idle link every datagram takes the delay asked for, within 10 us."""
    check(found, "one_way", 2)


def test_ten_delays_in_a_row_add_up(found: dict[str, Results]) -> None:
    """Ten delay stages of 10 ms make 100 ms, within 10 us each."""
    check(found, "nested", 1)


def test_a_full_buffer_delays_by_its_bytes(found: dict[str, Results]) -> None:
    """The last datagram that finds room waits for buffer / rate, within 1 %."""
    check(found, "full_buffer", 2)


def test_random_loss_is_binomial(found: dict[str, Results]) -> None:
    """From 1e-2 to 1e-5, the count of losses lies in the 99 % interval of a fair dice."""
    check(found, "random_loss", 4)


def test_a_loss_of_one_in_a_billion_is_taken(found: dict[str, Results]) -> None:
    """The kernel has 1e-9 to half a step of its fraction, and it is not zero."""
    check(found, "rare_loss", 1)


def test_losses_come_in_the_bursts_asked_for(found: dict[str, Results]) -> None:
    """Gilbert-Elliott and four states: losses and length of bursts lie in their chain's 99 % intervals."""
    check(found, "bursts", 4)


def test_every_loss_is_that_of_the_seed(found: dict[str, Results]) -> None:
    """The numbers of the packets lost are those that netem's own generator and models give for the seed."""
    models = found["standard"]["bursts"]["models"]
    assert [cell["model"]["model"] for cell in models] == list(DICE)
    for cell in models:
        parameters = {name: value for name, value in cell["model"].items() if name != "model"}
        lost = DICE[cell["model"]["model"]](cell["seed"], cell["sent"], **parameters)
        assert lost
        assert cell["lost"] == lost


def test_packets_overtake_double_and_break_at_their_shares(found: dict[str, Results]) -> None:
    """Reordering, duplication and corruption hit their share, by 99 % intervals, and do nothing else."""
    check(found, "shares", 3)


def test_jitter_has_its_distribution(found: dict[str, Results]) -> None:
    """Delays pass a Kolmogorov-Smirnov test against the table, for every distribution."""
    check(found, "jitter", 4)


def test_bytes_follow_a_trace(found: dict[str, Results]) -> None:
    """A hundred changes of the rate a second: every 100 ms bin is within 2 % of the trace."""
    check(found, "trace", 1)


def test_cubic_and_bbr_respond_to_loss_as_known(found: dict[str, Results]) -> None:
    """CUBIC's window follows RFC 9438 within a factor of 1.5; BBR keeps 95 % of the link at 1e-3."""
    check(found, "under_loss", 4)


def test_offloads_change_nothing(found: dict[str, Results]) -> None:
    """With super-packets and without: the same goodput and the same share of losses within 1 %."""
    check(found, "offloads", 4)
