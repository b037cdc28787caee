"""The clusters' hardware: profiles by name or from files, and whether they cover what the run computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, log
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from agents.compute_profile import FURTHEST_TOKENS, ComputeProfile
from agents.profiles import MODELS, PROFILES
from testbed.errors import ScenarioError
from testbed.profiles.read import read
from testbed.resolve.findings import Findings
from testbed.scenario.model import Scenario
from testbed.scenario.profile import Profile, ProfileFile
from testbed.scenario.source import KeyPath
from testbed.workload import Load

STEEPEST: Final = 20
"""Exponent of a prefill's time in its length; attention alone has 2."""
LEAST_PREFILL_S, LONGEST_PREFILL_S = 1e-6, 86_400.0
GO_ON: Final = "extrapolate: true beside its file, or more measurements"


class Covered(NamedTuple):
    """Prompts that every profile covers, in tokens; `next_step` says what leads further, if anything does."""

    least_tokens: int = 1
    most_tokens: int = FURTHEST_TOKENS
    next_step: str = ""


@dataclass(frozen=True)
class Hardware:
    """The profile of each cluster, None where it has problems; those from files by their key, too."""

    prfaas: ComputeProfile | None = None
    pd: ComputeProfile | None = None
    files: dict[str, ComputeProfile] = field(default_factory=dict)

    def covered(self) -> Covered:
        """What the profiles cover that are known."""
        known = [one for one in (self.prfaas, self.pd) if one is not None]
        least = max((one.min_tokens for one in known), default=1)
        most = min((one.max_tokens for one in known), default=FURTHEST_TOKENS)
        limiting = [one for one in known if one.name in self.files and not one.extrapolate]
        helps = any(one.min_tokens == least > 1 or one.max_tokens == most for one in limiting)
        return Covered(least, most, GO_ON if helps else "")


def resolve_profiles(scenario: Scenario, directory: Path, findings: Findings) -> Hardware:
    """The profiles of both clusters; files lie in `directory`, the scenario's own. Without clusters none."""
    clusters = scenario.clusters
    if clusters is None:
        return Hardware()
    found: list[ComputeProfile | None] = []
    files: dict[str, ComputeProfile] = {}
    for name, spec in (("prfaas", clusters.prfaas.profile), ("pd", clusters.pd.profile)):
        path: KeyPath = ("clusters", name, "profile")
        if isinstance(spec, ProfileFile):
            profile = _from_file(spec, directory, path, findings)
            if profile is not None:
                _check_file(profile, scenario, path, findings)
                files[spec.key] = profile
        else:
            findings.name_unknown(path, "profile", spec, PROFILES)
            profile = PROFILES.get(spec)
        found.append(profile)
    prfaas, pd = found
    if pd is not None:
        _check_decode(pd, clusters.pd.profile, findings)
    return Hardware(prfaas, pd, files)


def check_extrapolation(
    hardware: Hardware, scenario: Scenario, load: Load | None, findings: Findings
) -> None:
    """Where a profile goes on beyond what was measured, the times that follow are times."""
    if load is None or not load.requests:
        return
    shortest = 1 if scenario.cache is not None else min(one.input_tokens for one in load.requests)
    longest = max(one.input_tokens + one.output_tokens for one in load.requests)
    for name, profile in (("prfaas", hardware.prfaas), ("pd", hardware.pd)):
        if profile is None or not profile.extrapolate:
            continue
        for tokens in (shortest, longest):
            try:
                seconds = profile.prefill_s(tokens)
            except (OverflowError, ZeroDivisionError):
                seconds = inf
            if not LEAST_PREFILL_S <= seconds <= LONGEST_PREFILL_S:
                found = f"extrapolated to {tokens} tokens a prefill takes {seconds:.3g} s"
                allowed = f"{LEAST_PREFILL_S:g} to {LONGEST_PREFILL_S:g} s"
                findings.add(("clusters", name, "profile"), found, allowed, "more measurements")


def check_contexts(hardware: Hardware, scenario: Scenario, load: Load | None, findings: Findings) -> None:
    """What requests hold while they decode lies within the measured contexts, where these are replayed."""
    pd = hardware.pd
    if pd is None or load is None or not load.requests or scenario.compute == "real":
        return
    least, most = pd.contexts
    shortest = min(one.input_tokens for one in load.requests)
    longest = max(one.input_tokens + one.output_tokens - 1 for one in load.requests)
    if not least <= shortest <= longest <= most:
        measured, needed = f"{least} to {most}", f"{shortest} to {longest}"
        found = f"decode was measured with contexts of {measured} tokens, and {needed} occur"
        allowed = f"prompts from {least} tokens on, up to {most} with their answers"
        findings.add(("clusters", "pd", "profile"), found, allowed, GO_ON)


def _from_file(
    spec: ProfileFile, directory: Path, path: KeyPath, findings: Findings
) -> ComputeProfile | None:
    """The profile of a file, by its key; None, and problems, when it is none."""
    file = directory / spec.file
    try:
        if not file.is_file():
            found = f"{file} is not a regular file" if file.exists() else f"there is no file {file}"
            allowed = f"a path relative to the scenario's own directory, or one of {', '.join(PROFILES)}"
            findings.add(path, found, allowed)
            return None
        beside = file.resolve().is_relative_to(Path(findings.source.file).parent.resolve())
        profile = read(file, quotes=beside)
    except OSError as error:
        findings.add(path, f"{file} cannot be looked for: {error.strerror}")
        return None
    except ScenarioError as error:
        findings.add_error(path, error)
        return None
    return msgspec.structs.replace(profile, name=spec.key, extrapolate=spec.extrapolate)


def _check_file(profile: ComputeProfile, scenario: Scenario, path: KeyPath, findings: Findings) -> None:
    """A file is of this model, and covers what a cache may leave to compute."""
    model = scenario.model
    if model in MODELS:
        layers, its_layers = len(MODELS[model].layers), len(profile.layers[0].ends) if profile.layers else 0
        if profile.model and profile.model != model:
            findings.add(
                path, f"was measured with {profile.model}, and the model is {model}", f"one of {model}"
            )
        elif its_layers and its_layers != layers:
            findings.add(
                path, f"has {its_layers} layers, and {model} has {layers}", f"{layers} layers, or none"
            )
    steep = [
        (before, after)
        for (before, first_s), (after, second_s) in pairwise(profile.knots)
        if abs(log(second_s / first_s)) > STEEPEST * log(after / before)
    ]
    for before, after in steep:
        found = f"its times of {before} and {after} tokens lie too far apart for a power law between them"
        findings.add(path, found, f"exponents up to {STEEPEST}")
    if scenario.cache is not None and profile.min_tokens > 1:
        found = (
            f"was measured from {profile.min_tokens} tokens on, and a cache can leave any number to compute"
        )
        findings.add(path, found, "a profile from 1 token on, or no cache", GO_ON)


def _check_decode(pd: ComputeProfile, spec: Profile, findings: Findings) -> None:
    """The PD cluster decodes, in batches from one request on."""
    path: KeyPath = ("clusters", "pd", "profile")
    if not pd.bs_max:
        allowed = ", ".join(name for name, profile in PROFILES.items() if profile.bs_max)
        if isinstance(spec, ProfileFile):
            allowed = f"decode rows in the file, or {allowed}"
        findings.add(path, f"{pd.name} was not profiled for decode", allowed)
        return
    least, most = pd.batches
    if least > 1 or most < pd.bs_max:
        found = f"decode was measured at every context with batches of {least} to {most}"
        findings.add(path, found, f"1 to {pd.bs_max}, the largest in the profile", GO_ON)
