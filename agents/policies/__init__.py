"""Scheduling policies: one module each, one line each in `POLICIES`."""

from agents.policies import bandwidth_aware, homogeneous, static_threshold
from agents.policies.view import Policy

POLICIES: dict[str, Policy] = {
    "homogeneous": homogeneous,
    "static_threshold": static_threshold,
    "bandwidth_aware": bandwidth_aware,
}
