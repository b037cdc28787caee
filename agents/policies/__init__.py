"""Scheduling policies: one module each, one line each in `POLICIES`."""

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
