"""Where the times of computing come from: profiles, or real kernels."""

from __future__ import annotations

from collections.abc import Mapping

from agents.compute_profile import ComputeProfile
from agents.profiles import MODELS, find
from testbed.plan import Plan
from testbed.profiles.ranges import beyond, decode_range, prefill_range
from testbed.report.markup import Child, Markup, element, joined
from testbed.report.tables import grid

CLUSTERS = {"prfaas": "A", "pd": "B"}
COMPUTE = {"prefill", "decode"}
REAL_FIGURES = "The figures are those of this machine at that time: another run has others."


def in_real_time(plan: Plan, manifest: Mapping[str, object]) -> bool:
    """Whether the run's clock was that of the machine; a killed run has no manifest that says so."""
    return manifest.get("clock") == "real" or plan.compute == "real"


def section(plan: Plan, manifest: Mapping[str, object]) -> Markup | None:
    """What was computed or replayed, and each profile with its source and range; None without instances."""
    used: dict[str, dict[str, None]] = {}
    for agent in plan.agents:
        if agent.role in COMPUTE:
            used.setdefault(agent.profile, {})[f"{agent.role} in {CLUSTERS[agent.cluster]}"] = None
    if not used:
        return None
    rows = [_row(find(name, plan.profiles), ", ".join(by), plan) for name, by in used.items()]
    heads = ["profile", "of", "source", "prefill", "decode", "outside of that"]
    return element(
        "section",
        element("h2", "Where the times of computing come from"),
        element(
            "div",
            _real(plan, manifest) if plan.compute == "real" else element("p", "Replayed: no kernel ran."),
            grid(heads, rows, left=6),
            element("p", *_method(plan), class_="soft"),
            class_="card",
        ),
    )


def _real(plan: Plan, manifest: Mapping[str, object]) -> Markup:
    """A guest sees no GPU; on the host's own kernel torch takes one where it finds one."""
    guest = manifest.get("kernel") == "uml"
    where = "on the CPU" if guest else "on a GPU if torch found one, else on the CPU"
    model = MODELS[plan.model]
    return joined(
        element(
            "p",
            f"Real kernels: model {model.name} ({model.source}), random weights of seed {plan.seed}, "
            f"{where}, in real time. {REAL_FIGURES}",
        ),
        element(
            "p",
            "No instance waits for a time of these profiles. They are what the policy counts on, and they "
            "limit prompts and batches:",
        ),
    )


def _row(profile: ComputeProfile, used_by: str, plan: Plan) -> list[Child]:
    file = profile.name in plan.profiles
    source = f"from a file: {profile.source}" if file else f"built in: {profile.source}"
    return [
        element("code", profile.name),
        used_by,
        joined(source, element("div", _details(profile), class_="finding") if file else None),
        prefill_range(profile),
        decode_range(profile),
        beyond(profile),
    ]


def _details(profile: ComputeProfile) -> str:
    model = f"model {profile.model}" if profile.model else "model not named"
    layers = len(profile.layers[0].ends) if profile.layers else 0
    return f"{model}, {f'a share of the time for each of {layers} layers' if layers else 'no layers apart'}"


def _method(plan: Plan) -> list[Child]:
    """How times between measured points are found, and where a file says more about itself."""
    between = (
        "Between two known lengths prefill follows a power law, a straight line of both logarithms; a decode "
        "step is linear in the batch and in the context. Layers without times of their own all take the same."
    )
    elsewhere = (
        " How many layers of the model were measured, and with which versions, stands in the JSON file "
        "beside a recorded profile."
    )
    return [between, elsewhere if plan.profiles else None]
