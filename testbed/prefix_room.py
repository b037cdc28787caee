"""The memory that cached prefixes take as bytes: the plan counts it in, and a run makes room for it."""

from __future__ import annotations

from collections.abc import Iterable

from agents.config import Cache
from agents.prefix_files import room_bytes
from agents.profiles import MODELS
from testbed.plan import Request


def cluster_room_bytes(compute: str, cache: Cache, model: str, requests: Iterable[Request]) -> int:
    """What the cached prefixes of one cluster take at most; 0 where there are books at most.

    They stay until the run ends, so it is the prompts that count, and not the size of the cache.
    """
    if compute != "real" or cache == Cache() or model not in MODELS:
        return 0
    return room_bytes(MODELS[model], ((one.hash_ids, one.input_tokens) for one in requests))
