"""Real kernels: hybrid models on torch. The only place where agents import it."""

from agents.compute.cache import Cache
from agents.compute.mixers import SEGMENT_TOKENS
from agents.compute.model import START_TOKEN, Model

__all__ = ["SEGMENT_TOKENS", "START_TOKEN", "Cache", "Model"]
