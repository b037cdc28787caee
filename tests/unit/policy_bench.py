"""Views, requests and systems that tests of policies are made of."""

from dataclasses import replace

from hypothesis import strategies as st

from agents.model import Lengths, System
from agents.policies import (
    bandwidth_aware,
)
from agents.policies.view import Answer, Config, Egress, Placed, Request, State, TenantLoad, View
from agents.profiles import COMPRESSIONS, MODELS, PROFILES

SYSTEM = System(
    PROFILES["h200"],
    PROFILES["h20"],
    MODELS["internal_1t"],
    n_prfaas=4,
    n_p=3,
    n_d=5,
    output_tokens=1024,
    compression=COMPRESSIONS["cachegen"],
)
LENGTHS = Lengths.from_quantiles([1500, 4000, 8000, 12000, 20000, 30000, 45000, 90000])
CONFIG = Config(19600, {}, LENGTHS, SYSTEM, 2.56)

SIZES = st.integers(0, 10**12)
DEPTHS = st.integers(0, 10**6)
EGRESS = st.builds(
    Egress,
    goodput_bps=st.floats(0, 1e12),
    backlog_bytes=SIZES,
    retrans_bytes=SIZES,
    acked_bytes=SIZES,
    rtt_s=st.floats(0, 100),
    min_rtt_s=st.floats(0, 100),
)
ROUTES = st.sampled_from(["prfaas", "pd"])
TENANTS = st.sampled_from(["a", "b"])


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request with any prefix in either cluster."""
    tokens = draw(st.integers(1, 131072))
    cached = st.integers(0, tokens - 1)
    return Request("r", tokens, draw(st.integers(1, 4096)), draw(cached), draw(cached), draw(TENANTS))


REQUESTS = requests()
VIEWS = st.builds(
    View,
    st.floats(0, 1e9),
    EGRESS,
    *[DEPTHS] * 6,
    n_p=st.integers(0, 8),
    n_d=st.integers(0, 8),
    converting=st.integers(0, 2),
    tenants=st.lists(st.builds(TenantLoad, TENANTS, DEPTHS, st.floats(0, 1e6)), max_size=2).map(tuple),
    placed=st.lists(st.builds(Placed, REQUESTS, ROUTES), max_size=3).map(tuple),
    answered=st.lists(
        st.builds(Answer, ROUTES, st.integers(1, 131072), st.floats(0, 1e4), TENANTS), max_size=6
    ).map(tuple),
)


def view(t_s: float, **egress: float) -> View:
    """A view with a calm link and empty queues, except for what is given."""
    calm = Egress(8e9, 0, 0, 250_000_000, 0.01, 0.01)
    return View(t_s, replace(calm, **egress), 0, 0, 0, 0, 0, 0)  # type: ignore[arg-type]


def run(views: list[View], params: dict[str, float] | None = None) -> State:
    """The state of bandwidth_aware after these control intervals."""
    config = Config(19600, params or {}, LENGTHS, SYSTEM, 2.56)
    state = bandwidth_aware.start(config)
    for each in views:
        state = bandwidth_aware.update(config, state, each)
    return state


def saturated(bps: float, seconds: float, start_s: float = 0.0) -> list[View]:
    """Intervals in which a standing backlog makes the goodput a sample of the capacity."""
    return [
        view(start_s + i / 4, goodput_bps=bps, acked_bytes=bps / 32, backlog_bytes=10**9, rtt_s=0.02)
        for i in range(1, round(4 * seconds))
    ]
