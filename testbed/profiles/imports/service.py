"""What real kernels took in a run of this testbed: of an instance that serves, not of an engine by itself.

Beside the kernels that is whatever else an instance does meanwhile, such as taking its turn on a processor
that others use. A prefill is from its start to its end; a layer from the one before until it is handed over;
a decode step of a request that decoded alone is its share of the time from joining the batch to its last
token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import msgspec

from agents.kv_layouts import MODELS
from testbed import journal_lines as lines
from testbed.errors import Problem, ScenarioError
from testbed.lettering import shown
from testbed.plan import Plan
from testbed.profiles.cells import printable
from testbed.profiles.table import Row, timed
from testbed.record_rows import SortedJournal
from testbed.rundir import RunDir
from testbed.units import NS_PER_S
from testbed.verdict import Verdict

ALLOWED = "the directory of a run with compute: real"


def model_of(directory: Path) -> str:
    """The model that a run computed. ScenarioError: it is no run with real kernels."""
    return _plan(directory).model


def rows(directory: Path) -> list[Row]:
    """Medians and quartiles of a run: of prompts without cached prefix by length, and of decoding alone.

    Raises:
        ScenarioError: it is no run with real kernels, cannot be trusted, or has faults, which may have slowed
            its instances.
    """
    plan = _plan(directory)
    if plan.faults:
        raise ScenarioError(Problem(str(directory), "a run with faults", "one without"))
    _check_verdict(directory)
    content = lines.read(RunDir(directory).journal)
    if content.problems:
        raise ScenarioError(*(Problem(f"{directory}: {one}", "cannot be read") for one in content.problems))
    journal = SortedJournal(content)
    prompts = {request.id: request.input_tokens for request in plan.requests}
    unplanned = sorted({one.id for one in journal.of(lines.Decode)} - prompts.keys())
    if unplanned:
        said = f"requests that the plan does not have were decoded: {unplanned[:5]}"
        raise ScenarioError(Problem(str(directory), said))
    whole = [one for one in journal.of(lines.Prefill) if one.tokens == prompts.get(one.id)]
    produced: dict[tuple[int, int], list[int]] = defaultdict(list)
    for one in journal.of(lines.Produced):
        if one.use == "kv":
            produced[one.id, one.attempt].append(one.t_ns)
    layers = len(MODELS[plan.model].layers)
    times_s: dict[tuple[int, int | None], list[float]] = defaultdict(list)
    for prefill in whole:
        start_ns, end_ns = prefill.t_start_ns, prefill.t_end_ns
        if start_ns is None or end_ns is None:
            continue
        times_s[prefill.tokens, None].append((end_ns - start_ns) / NS_PER_S)
        moments_ns = produced[prefill.id, prefill.attempt]
        if len(moments_ns) == layers:  # else several left together, and nothing says when each was done
            for layer, (before_ns, done_ns) in enumerate(pairwise([start_ns, *moments_ns])):
                times_s[prefill.tokens, layer].append((done_ns - before_ns) / NS_PER_S)
    found = [
        timed(Row(kind="prefill" if layer is None else "layer", tokens=tokens, layer=layer), some)
        for (tokens, layer), some in times_s.items()
    ]
    sizes = {one.tokens: one.kv_bytes for one in whole}
    found += [Row(kind="kv", tokens=tokens, size_bytes=size) for tokens, size in sizes.items()]
    return [*found, *_decode(journal, prompts)]


def _plan(directory: Path) -> Plan:
    try:
        plan = Plan.read(RunDir(directory).plan)
    except (OSError, msgspec.DecodeError):
        raise ScenarioError(Problem(str(directory), "has no plan of a run", ALLOWED)) from None
    if plan.compute != "real":
        raise ScenarioError(Problem(str(directory), f"a run with compute: {plan.compute}", ALLOWED))
    if plan.model not in MODELS:
        problem = Problem(str(directory), f"a run of model '{printable(plan.model)}'", ", ".join(MODELS))
        raise ScenarioError(problem)
    return plan


def _check_verdict(directory: Path) -> None:
    next_step = f"python -m testbed.report {directory} judges it"
    try:
        verdict = Verdict.read(RunDir(directory).verdict)
    except (OSError, msgspec.DecodeError):
        raise ScenarioError(Problem(str(directory), "has no verdict", next_step=next_step)) from None
    if verdict.status == "UNKNOWN":
        why = verdict.trust or (verdict.note,)
        raise ScenarioError(
            *(Problem(str(directory), f"its verdict is UNKNOWN: {shown(one)}") for one in why)
        )


def _decode(journal: SortedJournal, prompts: Mapping[int, int]) -> list[Row]:
    """A step of one request, by what it held half-way."""
    by_instance: dict[str, list[lines.Decode]] = defaultdict(list)
    for writer, one in journal.noted(lines.Decode):
        by_instance[writer].append(one)
    steps_s: dict[int, list[float]] = defaultdict(list)
    for all_of_it in by_instance.values():
        for one in _alone(all_of_it):
            assert one.t_last_ns is not None
            context_tokens = prompts[one.id] + (one.tokens - 1) // 2
            steps_s[context_tokens].append((one.t_last_ns - one.t_ns) / one.tokens / NS_PER_S)
    return [timed(Row(kind="decode", tokens=tokens, batch=1), some) for tokens, some in steps_s.items()]


def _alone(decodes: Iterable[lines.Decode]) -> list[lines.Decode]:
    """Those during which no other request had a place in the batch."""
    ended = [one for one in decodes if one.t_last_ns is not None and one.tokens > 0]
    ended.sort(key=lambda one: one.t_ns)
    found, busy_until_ns = [], 0
    for place, one in enumerate(ended):
        until_ns = one.t_last_ns or 0
        followed_ns = ended[place + 1].t_ns if place + 1 < len(ended) else until_ns
        if busy_until_ns <= one.t_ns and until_ns <= followed_ns:
            found.append(one)
        busy_until_ns = max(busy_until_ns, until_ns)
    return found
