"""The report of real kernels, real time and profiles from files, and how the plan's summary shows them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import polars as pl
import pytest
from rich.console import Console

from agents.compute_profile import ComputeProfile, DecodeSteps, LayerShares
from agents.profiles import PROFILES
from testbed import audit, check, expect
from testbed import tables as record
from testbed.plan import Agent, Plan
from testbed.profiles.ranges import beyond, decode_range, prefill_range
from testbed.report import answers, computing, page
from testbed.report.signals import Tables
from testbed.report.tables import DASH
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run

FILE = "profiles/mine.parquet"
MINE = ComputeProfile(
    name=FILE,
    source="a device, a command, 2026-01-01",
    knots=((512, 0.1), (4096, 1.0)),
    bs_max=8,
    model="tiny_hybrid",
    from_tokens=512,
    layers=(LayerShares(512, (0.4, 1.0)),),
    decode=(DecodeSteps(512, ((1, 0.01), (8, 0.02))), DecodeSteps(4096, ((1, 0.02), (8, 0.03)))),
)
GUEST = {"kernel": "uml", "clock": "real"}


def real_plan(requests: int = 3, profile: ComputeProfile = MINE) -> Plan:
    """Every instance has `profile`, and there is a reference."""
    plan = make_plan(requests=requests)
    agents = [
        msgspec.structs.replace(agent, profile=profile.name if agent.role in {"prefill", "decode"} else "")
        for agent in plan.agents
    ]
    checks = Agent(
        name="reference", role="reference", host="client", cluster="pd", profile=profile.name, memory_bytes=1
    )
    return msgspec.structs.replace(
        plan,
        model="tiny_hybrid",
        compute="real",
        agents=(*agents, checks),
        profiles={profile.name: profile},
        expectations=(),
    )


def answered(*rows: dict[str, object], ended: bool = True) -> Tables:
    """The two tables that the section reads; each row has what is given, above an answer that is right."""
    right = {
        "state": "completed", "decode": "decode-1", "received": [5, 6], "reference": [5, 6],
        "parts_at": None, "logits": "aa", "reference_logits": "aa", "same": True,
    }  # fmt: skip
    full = [{"id": number, **right, **row} for number, row in enumerate(rows)]
    end = [{"t_s": 9.0, "kind": "end", "name": "", "detail": ""}] if ended else []
    return {
        "answers": pl.DataFrame(full, schema=record.TABLES["answers"]),
        "events": pl.DataFrame(end, schema=record.TABLES["events"]),
    }


def cells(markup: str | None) -> list[list[str]]:
    """The text of every cell, row by row, without the heads."""
    assert markup is not None
    rows = re.findall(r"<tr>(<td.*?)</tr>", markup)
    return [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]


WRONG_TOKENS = {"received": [5], "parts_at": 1, "same": False}
WRONG_LOGITS = {"logits": "bb", "same": False}
NO_REFERENCE = {"reference": None, "reference_logits": None, "same": None}
FAILED = {"state": "failed", "decode": None, "received": None, "logits": None, "same": None}


def test_each_outcome_has_its_row() -> None:
    """Wrong tokens, wrong logits, no reference, no end, all right: in this order, each with what is known."""
    tables = answered({}, {**FAILED, "state": None}, FAILED, NO_REFERENCE, WRONG_LOGITS, WRONG_TOKENS)
    text = answers.section(real_plan(), tables)
    assert cells(text) == [
        ["5", "wrong tokens", "the same", "decode-1", "2", "none of 1 token", "6 of 2 tokens"],
        ["4", "wrong logits", "others", "decode-1", DASH, "2 tokens", "2 tokens"],
        ["3", "no reference", DASH, "decode-1", DASH, "2 tokens", DASH],
        ["1", "not completed: unfinished", DASH, DASH, DASH, DASH, "2 tokens"],
        ["2", "not completed: failed", DASH, DASH, DASH, DASH, "2 tokens"],
        ["0", "the same", "the same", "decode-1", DASH, "2 tokens", "2 tokens"],
    ]
    assert "request 4: the tokens are right, the logits are not" in (text or "")


def test_many_answers_are_counted() -> None:
    """Of more requests than rows the wrong ones are shown, the others by their number."""
    text = answers.section(real_plan(), answered(*[{}] * 60, *[WRONG_TOKENS] * 3, *[FAILED] * 2))
    shown = cells(text)
    assert len(shown) == answers.MOST_ROWS
    assert [row[0] for row in shown[:6]] == ["60", "61", "62", "63", "64", "0"]
    assert "and 15 more requests: 15 the same" in (text or "")


def test_answers_of_a_run_that_was_killed_are_not_judged() -> None:
    """Without an end there is no verdict, and what is known stands there all the same."""
    text = answers.section(real_plan(), answered({}, FAILED, ended=False))
    assert "did not end by itself" in (text or "")
    assert len(cells(text)) == 2


def test_replayed_runs_have_no_answers() -> None:
    """Where profiles are replayed there is nothing to compare."""
    assert answers.section(make_plan(requests=3), answered({})) is None


def test_real_kernels_say_what_they_are() -> None:
    """Model, seed and place stand there, in a guest the CPU for sure; the profiles are the policy's."""
    plan = real_plan()
    said = computing.section(plan, GUEST) or ""
    for text in ("Real kernels: model tiny_hybrid (", "random weights of seed 7, on the CPU, in real time",
                 "those of this machine at that time", "what the policy counts on"):  # fmt: skip
        assert text in said, text
    assert "on a GPU if torch found one" in (computing.section(plan, {"kernel": "host"}) or "")
    assert "Replayed" not in said


@pytest.mark.parametrize(("extrapolate", "outside"), [(False, "refused"), (True, "extrapolated")])
def test_profiles_from_files_say_where_they_are_from(*, extrapolate: bool, outside: str) -> None:
    """Source, model, layers and range of a file, beside those that are built in."""
    mine = msgspec.structs.replace(MINE, extrapolate=extrapolate)
    plan = make_plan(requests=3)
    agents = [
        msgspec.structs.replace(one, profile=FILE) if one.cluster == "pd" else one for one in plan.agents
    ]
    plan = msgspec.structs.replace(plan, agents=tuple(agents), profiles={FILE: mine})
    text = computing.section(plan, {}) or ""
    assert "Replayed: no kernel ran" in text
    assert "JSON file beside a recorded profile" in text
    assert cells(text) == [
        [
            "h200", "prefill in A", f"built in: {PROFILES['h200'].source}", "1,024 to 131,072 tokens",
            "not profiled", "shorter prompts extrapolated, else refused",
        ],
        [
            FILE, "prefill in B, decode in B",
            f"from a file: {MINE.source}model tiny_hybrid, a share of the time for each of 2 layers",
            "512 to 4,096 tokens", "1 to 8 requests, 512 to 4,096 tokens each", outside,
        ],
    ]  # fmt: skip


def test_built_in_profiles_need_no_file() -> None:
    """Nothing is said of files where there are none, nor of computing where there are no instances."""
    plan = make_plan(requests=3)
    text = computing.section(plan, {}) or ""
    assert [row[0] for row in cells(text)] == ["h200", "h20"]
    assert "JSON" not in text
    assert computing.section(msgspec.structs.replace(plan, agents=()), {}) is None


def test_ranges_in_words() -> None:
    """What is known of prefill and decode, and what happens outside of it."""
    h20 = PROFILES["h20"]
    assert prefill_range(h20) == "1,024 to 131,072 tokens"
    assert decode_range(h20) == "1 to 20 requests, the same for all"
    assert beyond(h20) == "shorter prompts extrapolated, else refused"
    assert decode_range(PROFILES["h200"]) == "not profiled"
    extrapolated = msgspec.structs.replace(MINE, extrapolate=True)
    assert (prefill_range(extrapolated), decode_range(extrapolated)) == (
        "512 to 4,096 tokens", "1 to 8 requests, 512 to 4,096 tokens each",
    )  # fmt: skip


def _page(tmp_path: Path, plan: Plan, manifest: dict[str, object]) -> str:
    run: RunDir = write_run(tmp_path / "run", plan, tcp_lines=64)
    tables = record.build(run, plan)
    findings = audit.judge(plan, tables)
    verdict = expect.judge(plan, tables, expect.trust(run, tables, findings))
    return page.write(run, plan, tables, verdict, manifest, findings=findings).read_text()


def test_a_page_of_real_time_promises_nothing_for_another_run(tmp_path: Path) -> None:
    """Its figures are this machine's, it is no faster than real time, and its record comes once."""
    text = _page(tmp_path, real_plan(20), {**GUEST, "virtual_s": 25.0, "wall_s": 60.0})
    for said in (
        "<dt>real time</dt>", "those of this machine at that time", "not the same record",
        "<h2>Answers</h2>", "share its processors", "A serving engine",
    ):  # fmt: skip
        assert said in text, said
    for said in ("virtual seconds", "faster than real time", "digest for digest", "the clock stands still"):
        assert said not in text, said


def test_a_killed_run_knows_its_clock() -> None:
    """Without a manifest real kernels mean real time; replay says nothing else than virtual."""
    assert computing.in_real_time(real_plan(), {})
    assert not computing.in_real_time(make_plan(requests=3), {})


def test_a_page_of_virtual_time_is_as_it_was(tmp_path: Path) -> None:
    """Virtual seconds, the same record again, and no word of answers."""
    text = _page(tmp_path, make_plan(requests=20), {"clock": "virtual", "virtual_s": 25.0, "wall_s": 5.0})
    for said in ("All times are virtual seconds", "5 times", "digest for digest", "no kernel runs"):
        assert said in text, said
    assert "Answers" not in text
    assert "this machine at that time" not in text


def test_replay_in_real_time_says_so(tmp_path: Path) -> None:
    """The clock alone makes figures those of the machine, with profiles, too."""
    text = _page(tmp_path, make_plan(requests=20), {"clock": "real", "virtual_s": 25.0, "wall_s": 60.0})
    assert "those of this machine at that time" in text
    assert "no kernel runs" in text


def _summary(plan: Plan) -> str:
    out = io.StringIO()
    check.show(plan, Console(file=out, width=400))
    return out.getvalue()


def test_the_summary_of_a_plan_shows_who_computes() -> None:
    """Real kernels with their seed, the file's source and ranges; the reference is no instance."""
    shown = _summary(real_plan())
    assert re.search(r"compute +real: kernels with random weights of seed 7, in real time", shown)
    assert f"7 prefill {FILE}, 3 decode {FILE}" in shown
    assert "reference" not in shown
    assert re.search(
        rf"profile +{FILE}: a device, a command, 2026-01-01; prefill 512 to 4,096 tokens; "
        "decode 1 to 8 requests, 512 to 4,096 tokens each; outside refused",
        shown,
    )
    replayed = _summary(make_plan(requests=3))
    assert re.search(r"compute +replay", replayed)
    assert not re.search(r"^profile ", replayed, re.MULTILINE)
