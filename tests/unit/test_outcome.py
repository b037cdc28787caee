"""What a scenario's test says of a run: one line for each expectation, and why, without a traceback."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from testbed.runs import Ended, Wanted
from testbed.testing.outcome import of_scenario, of_trusted, properties
from testbed.verdict import Result, Verdict, conclude

WANTED = Wanted("x-1", Path("x.yaml"))
HELD = Result(
    name="no request is lost", kind="bound", metric="requests.failed", status="PASS", measured=0.0,
    unit="requests", bound="at most 0", margin=0.0, line=7,
    sentence="requests.failed was 0 (allowed at most 0)",
)  # fmt: skip
LATE = msgspec.structs.replace(
    HELD, name="the threshold follows", kind="reaction", metric="threshold_tokens", status="FAIL",
    measured=4.2, unit="s", margin=-1.2, line=9,
    sentence="threshold_tokens crossed 22,000 tokens after 4.2 s (allowed 3 s)",
)  # fmt: skip
UNMEASURED = msgspec.structs.replace(LATE, status="UNKNOWN", measured=None, sentence="it has no samples")


def ended(verdict: Verdict | None, directory: Path | None = None, code: int = 0, said: str = "") -> Ended:
    return Ended(WANTED, directory, verdict, verdict.exit_code if verdict else code, said)


def test_a_scenario_passes_when_it_passed() -> None:
    """PASS is a pass, without a word."""
    assert of_scenario(ended(conclude((HELD,), ())), control=False).kind == "passed"


def test_a_failure_names_reaction_measured_value_and_bound(tmp_path: Path) -> None:
    """A line for each expectation, with its line in the file, then where the report lies."""
    (tmp_path / "report.html").touch()
    judged = of_scenario(ended(conclude((HELD, LATE), ()), tmp_path), control=False)
    assert judged.kind == "failed"
    assert judged.text == (
        "FAIL  1 of 2 expectations did not hold\n"
        "  PASS     line 7: no request is lost: requests.failed was 0 (allowed at most 0)\n"
        "  FAIL     line 9: the threshold follows: threshold_tokens crossed 22,000 tokens after 4.2 s"
        " (allowed 3 s)\n"
        f"report: {tmp_path}/report.html"
    )


def test_a_control_passes_when_it_failed_and_only_then() -> None:
    """FAIL is what a control is for; PASS says that the expectations are too weak; UNKNOWN says nothing."""
    assert of_scenario(ended(conclude((LATE,), ())), control=True).kind == "passed"
    passed = of_scenario(ended(conclude((HELD,), ())), control=True)
    assert (passed.kind, passed.text.splitlines()[0]) == (
        "failed",
        "PASS, but this is a control, which must FAIL: its expectations are too weak",
    )
    assert of_scenario(ended(conclude((LATE,), ("the link was slow",))), control=True).kind == "failed"


@pytest.mark.parametrize("control", [True, False])
def test_unknown_fails_with_its_reasons(control: bool) -> None:
    """Reasons not to trust a run, and what could not be measured, stand in the failure."""
    judged = of_scenario(ended(conclude((UNMEASURED,), ("the guest died", "no end"))), control=control)
    assert judged.kind == "failed"
    assert judged.text.startswith("UNKNOWN  the run cannot be trusted: 2 reasons\n  UNKNOWN  line 9: ")
    assert judged.text.endswith("  not trusted: the guest died\n  not trusted: no end")


def test_what_kept_a_run_from_being_judged_is_said_in_its_own_words() -> None:
    """Exit code 3 fails with the problems, 4 skips with what is missing, anything else is UNKNOWN."""
    wrong = "x.yaml:3: seed: -1 is not allowed here"
    for of in (lambda one: of_scenario(one, control=True), of_trusted):
        assert (of(ended(None, code=3, said=wrong)).kind, of(ended(None, code=3, said=wrong)).text) == (
            "failed",
            wrong,
        )
        assert (of(ended(None, code=4, said="no kernel")).kind) == "skipped"
        assert of(ended(None, Path("out"), code=2, said="disk full")).text == (
            "UNKNOWN  the run left no verdict (exit code 2): disk full\nrun: out"
        )


def test_a_run_to_look_at_may_have_failed_but_must_be_trusted() -> None:
    """Whether it passed is for the test to tell."""
    assert of_trusted(ended(conclude((LATE,), ()))).kind == "passed"
    assert of_trusted(ended(conclude((LATE,), ("no end",)))).kind == "failed"


def test_properties_say_where_a_run_lies_and_what_it_measured(tmp_path: Path) -> None:
    """For JUnit: verdict, run directory, every measured value with its unit, what was missed."""
    found = dict(properties(ended(conclude((HELD, LATE), ()), tmp_path)))
    assert found == {
        "testbed.verdict": "FAIL",
        "testbed.note": "1 of 2 expectations did not hold",
        "testbed.run": str(tmp_path),
        "testbed.measured: no request is lost": "0 requests",
        "testbed.measured: the threshold follows": "4.2 s",
        "testbed.missed": "FAIL the threshold follows: threshold_tokens crossed 22,000 tokens after 4.2 s"
        " (allowed 3 s)",
    }
