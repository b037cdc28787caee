"""What arXiv 2604.15039 prints, and what follows from its model; the tests have the model reproduce it.

Its throughput figures come from the model fed with profiles, not from runs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from agents.lengths import TruncatedLognormal
from agents.model import System
from agents.profiles import MODELS, PROFILES

LENGTHS: Final = TruncatedLognormal(9.90, 1.00, 128, 131_072)
"""Section 4.1: prompts of 27K tokens on average."""
OUTPUT_TOKENS: Final = 1024
LINK_BPS: Final = 100e9
THRESHOLD_TOKENS: Final = 19_400


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment of table 6: instances, requests/s of each stage and of all; None: not printed."""

    title: str
    scenario: str
    n_prfaas: int
    n_p: int
    n_d: int
    threshold_tokens: int
    theta_prfaas: float | None
    theta_p: float | None
    theta_d: float
    lambda_max: float
    ratio: float
    offloaded_share: float | None = None
    mean_offloaded_tokens: float | None = None
    egress_bps: float | None = None

    @property
    def system(self) -> System:
        """The deployment, for the model."""
        return System(
            PROFILES["h200"],
            PROFILES["h20"],
            MODELS["internal_1t"],
            n_prfaas=self.n_prfaas,
            n_p=self.n_p,
            n_d=self.n_d,
            output_tokens=OUTPUT_TOKENS,
        )


TABLE_6: Final = (
    Column(
        title="PrfaaS-PD",
        scenario="table6_prfaas.yaml",
        n_prfaas=4,
        n_p=3,
        n_d=5,
        threshold_tokens=THRESHOLD_TOKENS,
        theta_prfaas=1.61,
        theta_p=1.64,
        theta_d=3.91,
        lambda_max=3.24,
        ratio=1.54,
        offloaded_share=0.496,
        mean_offloaded_tokens=44_000,
        egress_bps=13e9,
    ),
    Column(
        title="homogeneous PD",
        scenario="table6_homogeneous.yaml",
        n_prfaas=0,
        n_p=9,
        n_d=3,
        threshold_tokens=131_072,
        theta_prfaas=None,
        theta_p=2.11,
        theta_d=2.35,
        lambda_max=2.11,
        ratio=1.00,
    ),
    Column(
        title="naive heterogeneous",
        scenario="table6_naive.yaml",
        n_prfaas=4,
        n_p=0,
        n_d=8,
        threshold_tokens=0,
        theta_prfaas=2.45,
        theta_p=None,
        theta_d=6.25,
        lambda_max=2.45,
        ratio=1.16,
    ),
)
"""Table 6 and section 4; the last three of the first column are given in the text, "about"."""
LEAST_RATIO_TO_HOMOGENEOUS: Final = 1.45
LEAST_RATIO_TO_NAIVE: Final = 1.25
LINKS_GBPS: Final = (100, 12, 10, 8, 5, 2, 1)
"""Of these the link limits from 12 on."""
