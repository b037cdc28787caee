"""From the record to the verdict. Pure: everything it knows stands in the plan and in the tables.

How the kinds are judged, docs/expectations.md says with examples:

bound        The statistic over the window lies in [low, high], both ends included.
reaction     From the event to the end of the record, the first sample that stands on the wanted side of
             `level` (the level itself included) after one that does not. The value that held before the event
             counts as such a sample: a signal that stood there already did not react. One without an earlier
             value did not stand there.
recovery     From the event on, the first sample from which all samples until the window's end lie in
             [low, high], both ends included. A signal that was in there from just before the event on has
             nothing to recover from: UNKNOWN.
settling     The same for a band around `target`, or around where the signal comes to rest.
overshoot    How far the signal goes beyond the end of its step, as a share of it. Without a step: UNKNOWN.
stability    Turning points of the signal in the window, where only a move of at least `level` away from the
             last extreme turns it.
oscillation  The amplitude of what the signal repeats in the window, if it repeats something.
fairness     Jain's index of what tenants got, or the largest over the smallest.
oracle       What was carried, as a share of what could have been while KV waited for the link.

What was not measured is UNKNOWN, never PASS: no rows, an event that never came, samples missing for
several intervals in the time that decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from testbed import answers, broken_policy, endings, ledger
from testbed.expect import events, shares, windows
from testbed.expect.reasons import trust
from testbed.expect.results import event_time, unknown
from testbed.measure import Tables
from testbed.plan import Expectation, Plan
from testbed.verdict import Result, Verdict, conclude

__all__ = ["judge", "judge_one", "trust"]

OVER_A_WINDOW = {
    "bound": windows.bound,
    "stability": windows.stability,
    "oscillation": windows.oscillation,
    "fairness": shares.fairness,
    "oracle": shares.against_oracle,
}
AFTER_AN_EVENT = {
    "reaction": events.reaction,
    "recovery": events.recovery,
    "settling": events.settling,
    "overshoot": events.overshoot,
}


def judge(plan: Plan, tables: Tables, trust: Sequence[str]) -> Verdict:
    """Judge every expectation of `plan`, and what every run has to pass: the ledger, and right answers.

    `trust` holds the reasons not to trust the run, if any.
    """
    results = [judge_one(expectation, tables) for expectation in plan.expectations]
    if trust and "end" not in set(tables["events"]["kind"]):
        results = [_cut_short(result) for result in results]
    checks = (
        broken_policy.judge(tables),
        ledger.judge(plan, tables),
        answers.judge(plan, tables),
        endings.judge(plan, tables),
    )
    return conclude((*results, *(check for check in checks if check)), tuple(trust))


def _cut_short(result: Result) -> Result:
    """What a run did not do before it was cut short, it might have done."""
    if result.status != "FAIL":
        return result
    sentence = f"{result.sentence}; but the run was cut short"
    return msgspec.structs.replace(result, status="UNKNOWN", sentence=sentence)


def judge_one(expectation: Expectation, tables: Tables) -> Result:
    """Judge one expectation, whether the run can be trusted or not."""
    if expectation.kind in OVER_A_WINDOW:
        return OVER_A_WINDOW[expectation.kind](expectation, tables)
    event_s = event_time(expectation, tables)
    if event_s is None:
        return unknown(expectation, f'the event "{expectation.event}" is not in the record')
    return AFTER_AN_EVENT[expectation.kind](expectation, tables, event_s)
