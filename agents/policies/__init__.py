"""Scheduling policies: one module each, one line each in `POLICIES`."""

from agents.config import Scheduling
from agents.policies import (
    aimd,
    bandwidth_aware,
    compression,
    fair_share,
    homogeneous,
    learned,
    naive_heterogeneous,
    prfaas,
    static_threshold,
)
from agents.policies.http_service import HttpService
from agents.policies.view import Policy

POLICIES: dict[str, Policy] = {
    "homogeneous": homogeneous,
    "naive_heterogeneous": naive_heterogeneous,
    "static_threshold": static_threshold,
    "bandwidth_aware": bandwidth_aware,
    "prfaas": prfaas,
    "aimd": aimd,
    "learned": learned,
    "fair_share": fair_share,
    "compression": compression,
}

HTTP = "http"
"""The name of the policy that is a service."""


def policy_of(scheduling: Scheduling) -> Policy:
    """The policy that a router is told to ask."""
    return POLICIES[scheduling.policy] if scheduling.service is None else HttpService(scheduling.service)
