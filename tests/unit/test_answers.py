"""Whether answers are those of one process: the table of answers, and the verdict on it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from testbed import answers, tables, verdict
from testbed.expect import judge
from testbed.rundir import RunDir
from testbed.verdict import Result, Status
from tests.unit.real_plan import plan_of
from tests.unit.synthetic_run import note

RIGHT = [5, 6, 7, 8]
ONE = {
    "id": 1,
    "state": "completed",
    "token_ids": RIGHT,
    "logits": "aa",
    "reference": RIGHT,
    "reference_logits": "aa",
}
"""Of an answer, all that anybody noted: without a key, the line or the field is missing."""


def run_with(directory: Path, *noted: dict[str, Any], ended: bool = True) -> RunDir:
    """A run whose journal has these answers."""
    run = RunDir(directory)
    note(run, "bench", "start", 0)
    if ended:
        note(run, "bench", "end", 99, reason="every request ended")
    for one in noted:
        number = one["id"]
        if "state" in one:
            note(run, "client", "request", 1, id=number, state=one["state"], token_ids=one.get("token_ids"))
        if "logits" in one:
            note(run, "decode-1", "decode", 2, id=number, t_first_ns=2, t_last_ns=3, tokens=4,
                 token_ids=RIGHT, logits_digest=one["logits"])  # fmt: skip
        if "reference" in one:
            note(run, "reference", "reference", 4, id=number, token_ids=one["reference"],
                 logits_digest=one["reference_logits"])  # fmt: skip
    return run


def judged(
    directory: Path, *noted: dict[str, Any], compute: str = "real", ended: bool = True
) -> Result | None:
    """The verdict's line about such answers."""
    plan = plan_of([one["id"] for one in noted], compute)
    return answers.judge(plan, tables.build(run_with(directory, *noted, ended=ended), plan))


def without(*keys: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (ONE | {"id": 2} | changes).items() if key not in keys}


@pytest.mark.parametrize(
    ("other", "status", "wrong", "says"),
    [
        ({}, "PASS", 0, "2 answers of 8 tokens in all are those of one process, and the logits behind them"),
        ({"token_ids": [5, 6, 9, 8]}, "FAIL", 1, "request 2: token 3 is 9, in one process 7"),
        ({"token_ids": [5, 6, 7]}, "FAIL", 1, "request 2: token 4 is missing, in one process 8"),
        ({"token_ids": [*RIGHT, 9]}, "FAIL", 1, "request 2: token 5 is 9, in one process missing"),
        ({"token_ids": []}, "FAIL", 1, "request 2: token 1 is missing, in one process 5"),
        ({"token_ids": None}, "FAIL", 1, "request 2: token 1 is missing, in one process 5"),
        ({"logits": "ab"}, "FAIL", 1, "request 2: the tokens are right, the logits are not, bit for bit"),
        ({"state": "failed", "token_ids": [9]}, "PASS", 0, "1 answers of 4 tokens"),
    ],
)
def test_an_answer_is_compared_with_that_of_one_process(
    tmp_path: Path, other: dict[str, Any], status: Status, wrong: int, says: str
) -> None:
    """Token by token, then the logits; what did not complete does not count."""
    result = judged(tmp_path, ONE, without(**other))
    assert result is not None
    assert (result.status, result.measured, result.margin) == (status, wrong, -wrong)
    assert says in result.sentence


@pytest.mark.parametrize(
    ("noted", "says"),
    [
        ([ONE, without("reference")], "nothing tells whether 1 of 2 answers are right"),
        ([without("reference")], "nothing tells whether 1 of 1 answers are right"),
        ([without("logits")], "nothing tells whether 1 of 1 answers are right"),
        ([without(state="failed")], "no request was answered"),
        ([without("state")], "no request was answered"),
    ],
)
def test_what_cannot_be_compared_is_unknown(tmp_path: Path, noted: list[dict[str, Any]], says: str) -> None:
    """No reference, no logits (tokens alone could be right by luck), or no answer: never a pass."""
    result = judged(tmp_path, *noted)
    assert result is not None
    assert (result.status, result.measured) == ("UNKNOWN", 0)
    assert says in result.sentence


def test_a_wrong_answer_fails_also_where_others_are_unknown(tmp_path: Path) -> None:
    """What is known to be wrong is wrong, and at most three are spelt out."""
    wrong = [without(id=number, token_ids=[20 + number]) for number in (3, 4, 5, 6, 7)]
    result = judged(tmp_path, ONE, without("reference"), *wrong)
    assert result is not None
    assert (result.status, result.measured) == ("FAIL", 5)
    first = "; ".join(f"request {number}: token 1 is {20 + number}, in one process 5" for number in (3, 4, 5))
    assert result.sentence == f"{first}, and 2 more"


def test_there_is_nothing_to_judge_without_kernels_requests_or_an_end(tmp_path: Path) -> None:
    """A replay, a plan without requests, a run that was broken off: no line in the verdict."""
    assert judged(tmp_path / "replay", ONE, compute="replay") is None
    assert judged(tmp_path / "nobody") is None
    assert judged(tmp_path / "broken", ONE, ended=False) is None


def test_the_table_has_a_row_for_each_request(tmp_path: Path) -> None:
    """Also for one that nobody answered; what was not noted is null. In a replay it has none."""
    plan = plan_of([1, 2, 3])
    run = run_with(tmp_path / "real", without(id=1, token_ids=[5, 9]), without("reference"))
    rows = tables.build(run, plan)["answers"].to_dicts()
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert (rows[0]["parts_at"], rows[0]["same"], rows[0]["decode"]) == (1, False, "decode-1")
    assert (rows[1]["reference"], rows[1]["parts_at"], rows[1]["same"]) == (None, None, None)
    assert [value for key, value in rows[2].items() if key != "id"] == [None] * 8
    assert tables.build(run, plan_of([1, 2, 3], "replay"))["answers"].is_empty()


def test_of_several_attempts_the_last_one_s_logits_count(tmp_path: Path) -> None:
    """Decode has noted two; the client got the second."""
    plan = plan_of([1])
    run = run_with(tmp_path, ONE | {"logits": "bad"})
    note(run, "decode-2", "decode", 50, id=1, attempt=1, t_first_ns=51, t_last_ns=52, tokens=4,
         token_ids=RIGHT, logits_digest="aa")  # fmt: skip
    built = tables.build(run, plan)
    assert built["answers"].to_dicts()[0]["decode"] == "decode-2"
    result = answers.judge(plan, built)
    assert result is not None
    assert result.status == "PASS"


@pytest.mark.parametrize(
    ("other", "status", "note_of_it", "outcome"),
    [
        ({}, "PASS", "nothing was expected", None),
        ({"logits": "ab"}, "FAIL", "answers are wrong", "failure"),
        ({"id": 2, "reference": None}, "UNKNOWN", "could not be checked: answers", "error"),
    ],
)
def test_answers_decide_a_run_that_expects_nothing(
    tmp_path: Path, other: dict[str, Any], status: Status, note_of_it: str, outcome: str | None
) -> None:
    """A check of every such run: in the verdict, its exit code and junit.xml."""
    one = without("reference") if "reference" in other else without(**other)
    result = judged(tmp_path, one)
    assert result is not None
    concluded = verdict.conclude((result,), ())
    assert (concluded.status, concluded.note) == (status, note_of_it)
    path = tmp_path / "junit.xml"
    verdict.write_junit(concluded, "suite", path)
    (case,) = ET.parse(path).getroot().iter("testcase")
    assert (case.attrib["name"], case.find(outcome or "system-out") is not None) == ("answers", True)
    assert {child.tag for child in case} == {outcome or "system-out"}


def test_the_verdict_of_a_run_has_them(tmp_path: Path) -> None:
    """Beside the ledger; a trust problem comes first."""
    plan = plan_of([1])
    built = tables.build(run_with(tmp_path, ONE | {"token_ids": [9]}), plan)
    found = {result.name: result.status for result in judge(plan, built, ()).results}
    assert found["answers"] == "FAIL"
    assert judge(plan, built, ()).status == "FAIL"
    assert judge(plan, built, ("an agent died",)).status == "UNKNOWN"
