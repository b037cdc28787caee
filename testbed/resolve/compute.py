"""Real kernels: whether what is asked of them can be, and the memory that they take."""

from __future__ import annotations

from typing import Final

from agents.config import Payload
from agents.profiles import MODELS
from agents.shapes import SHAPES, Shape
from testbed.errors import Problem, ScenarioError
from testbed.resolve.findings import Findings
from testbed.scenario.model import Scenario
from testbed.scenario.workload import BulkWorkload

LIBRARY_BYTES: Final = 1 << 30
"""What torch takes by itself (measured: 0.4 GB), and room for the activations and KV of a few prompts."""
WEIGHT_BYTES: Final = 4
"""On the CPU."""


def check_compute(scenario: Scenario, scale: float, findings: Findings) -> None:
    """Real kernels make real bytes: they cannot be scaled or compressed."""
    if scenario.compute != "real":
        return
    if isinstance(scenario.workload, BulkWorkload):
        findings.add(("compute",), "has no effect on a bulk workload", next_step="remove it")
        return
    if scenario.model in MODELS and scenario.model not in SHAPES:
        found = f"{scenario.model} has no real kernels: the sizes of its layers are not known"
        findings.add(("model",), found, ", ".join(SHAPES), "another model, or compute: replay")
    if scale != 1:
        where = findings.source.where(("scale",)) if scale == scenario.scale else f"--scale {scale:g}"
        found = f"{scale:g} of KV that real kernels compute"
        findings.add_error(
            ("scale",), ScenarioError(Problem(where, found, "1", "a slower link, a smaller model"))
        )
    transport = scenario.transport
    if transport.compression is not None:
        found = "nothing here compresses real KV"
        findings.add(("transport", "compression"), found, next_step="remove it, or compute: replay")
    if "payload" in transport.model_fields_set:
        found = "has no effect: the KV of real kernels crosses, and every chunk is verified"
        findings.add(("transport", "payload"), found, next_step="remove it")


def payload(scenario: Scenario) -> Payload:
    """What the bytes of KV are."""
    return "tensors" if scenario.compute == "real" else scenario.transport.payload


def kernel_memory_bytes(scenario: Scenario) -> int:
    """What an agent needs beyond one that replays; 0 without real kernels."""
    shape = SHAPES.get(scenario.model or "")
    return model_memory_bytes(shape) if scenario.compute == "real" and shape is not None else 0


def model_memory_bytes(shape: Shape) -> int:
    """Of torch, the weights (an upper bound), and as much again while they are drawn."""
    mixers = sum(3 * one.heads * (one.key_dim + one.value_dim) for one in shape.layers)
    mlps = len(shape.layers) * 3 * shape.ffn_dim
    return LIBRARY_BYTES + 2 * WEIGHT_BYTES * shape.hidden_dim * (mixers + mlps + 2 * shape.vocab)
