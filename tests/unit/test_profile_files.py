"""Profiles from files: what is read from Parquet and CSV, and how scenarios come to use it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.compute_profile import ComputeProfile, DecodeSteps, LayerShares
from agents.config import Config
from agents.profiles import PROFILES, find
from testbed.errors import ScenarioError
from testbed.plan import Plan
from testbed.profiles.read import MAX_PROBLEMS, read
from testbed.profiles.table import COLUMNS, About, Row, write
from testbed.resolve import load_and_resolve
from testbed.system import agent_config

ROOT = Path(__file__).parents[2]
BASE = (ROOT / "tests/data/base.yaml").read_text(encoding="utf-8")
GOOD = ROOT / "tests/bad_scenarios/profiles/good.csv"
ABOUT = About(model="tiny", source="a test", of_layers=2, layers=2, device_name="abacus", date="2026-01-01")
ROWS = (
    *(Row(kind="prefill", tokens=n, median_s=s, samples=3) for n, s in ((64, 0.1), (16, 0.05))),
    *(Row(kind="layer", tokens=16, layer=n, median_s=s, samples=3) for n, s in ((1, 0.03), (0, 0.01))),
    Row(kind="kv", tokens=16, size_bytes=1000),
    *(
        Row(kind="decode", tokens=tokens, batch=batch, median_s=0.001 * batch * tokens, samples=3)
        for tokens in (64, 16)
        for batch in (2, 1)
    ),
)  # fmt: skip


TINY = Path(__file__).parents[2] / "scenarios/profiles/tiny_hybrid_cpu.parquet"


def problems_of(path: Path, *, quotes: bool = True) -> str:
    """What is wrong with a file."""
    with pytest.raises(ScenarioError) as caught:
        read(path, quotes=quotes)
    return str(caught.value)


def test_a_recorded_profile_is_read(tmp_path: Path) -> None:
    """In any order of rows: medians, shares of the layers' sum, decode by context and batch, whose it is."""
    path = tmp_path / "x.parquet"
    write(path, ROWS, ABOUT)
    assert read(path) == ComputeProfile(
        name=str(path),
        source="abacus, a test, 2026-01-01",
        knots=((16, 0.05), (64, 0.1)),
        bs_max=2,
        model="tiny",
        from_tokens=16,
        layers=(LayerShares(16, (0.25, 1.0)),),
        decode=(DecodeSteps(16, ((1, 0.016), (2, 0.032))), DecodeSteps(64, ((1, 0.064), (2, 0.128)))),
    )


def test_csv_says_the_same(tmp_path: Path) -> None:
    """Comments, empty lines, spaces, columns in any order; it covers what it begins and ends with."""
    path = tmp_path / "x.csv"
    path.write_text(
        "# mine\n\ntokens, kind,seconds,batch,layer\n16,prefill,0.05,,\n64,prefill,0.1,,\n16,layer,0.01,,0\n"
        "16, layer, 0.03,,1\n16,decode,0.016,1,\n64,decode,0.064,1,\n16,decode,0.032,2,\n64,decode,0.128,2,\n"
    )
    recorded = tmp_path / "y.parquet"
    write(recorded, ROWS, ABOUT)
    mine = read(path)
    assert (mine.source, mine.model, mine.min_tokens, mine.max_tokens) == ("x.csv", "", 16, 64)
    same = {"name": "", "source": "", "model": ""}
    assert msgspec.structs.replace(mine, **same) == msgspec.structs.replace(read(recorded), **same)


def test_prefill_alone_is_a_profile(tmp_path: Path) -> None:
    """Of hardware that does not decode, without layers."""
    path = tmp_path / "x.csv"
    path.write_text("kind,tokens,seconds\nprefill,16,0.05\nprefill,64,0.1\n")
    profile = read(path)
    assert (profile.bs_max, profile.decode, profile.layers) == (0, (), ())


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"tokens": None}, "row 1: tokens: is missing"),
        ({"median_s": 0.0}, "row 1: median_s: 0.0 is not allowed here"),
        ({"median_s": float("nan")}, "row 1: median_s: nan is not allowed here"),
        ({"batch": 1}, "row 1: batch: 1 is not allowed here"),
        ({"kind": "prefell"}, 'row 1: kind: "prefell" is not allowed here'),
        ({"tokens": 16}, "16 tokens come after 16"),
    ],
)
def test_wrong_rows_of_parquet_are_named_by_number(
    tmp_path: Path, change: dict[str, object], found: str
) -> None:
    """With the column, as a file that is not text has no lines."""
    path = tmp_path / "x.parquet"
    write(path, ROWS, ABOUT)
    rows = pl.read_parquet(path).rows(named=True)
    rows[0] |= change
    pl.DataFrame(rows, schema=COLUMNS).write_parquet(path)
    assert found in problems_of(path)


def test_parquet_of_something_else_is_refused(tmp_path: Path) -> None:
    """The columns that are other ones are named."""
    path = tmp_path / "x.parquet"
    pl.DataFrame({"kind": ["prefill"], "tokens": [1.5]}).write_parquet(path)
    assert "has other columns: tokens, layer, batch" in problems_of(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"model": "tiny"}', "missing required field `source`"),
        ("{", "is not what describes a profile"),
        ('{"model": "tiny", "source": "x", "format": 2}', "has format 2"),
        ('{"model": "tiny", "source": "x", "layers": -1}', "`int` >= 0"),
        ('{"model": "tiny", "source": "x", "threads": 1000000000}', "`int` <= 1000000"),
        ('{"model": "tiny", "source": "x", "layers": 3, "of_layers": 2}', "layers is 3, and of_layers 2"),
        (" " * 2**20 + "{}", "is larger than 1 MiB"),
        ('{"model": "tiny", "source": "x", "of_layers": 3}', "of_layers is 3, and the profile has 2 layers"),
    ],
)
def test_what_describes_a_profile_has_to_fit(tmp_path: Path, text: str, found: str) -> None:
    """The JSON file is named, not the one beside it."""
    path = tmp_path / "x.parquet"
    write(path, ROWS, ABOUT)
    path.with_suffix(".json").write_text(text)
    assert f"{tmp_path}/x.json: " in problems_of(path)
    assert found in problems_of(path)


def test_what_describes_a_profile_is_a_file(tmp_path: Path) -> None:
    """A pipe in its place is refused, not waited for."""
    path = tmp_path / "x.parquet"
    write(path, ROWS, ABOUT)
    path.with_suffix(".json").unlink()
    os.mkfifo(path.with_suffix(".json"))
    assert f"{tmp_path}/x.json: is not a regular file" in problems_of(path)


def test_what_a_profile_says_does_not_control_the_terminal(tmp_path: Path) -> None:
    """Source and model are one short line of characters that print."""
    path = tmp_path / "x.parquet"
    write(path, ROWS, About(model="\x1b[2J", source="\n\x07" + "x" * 999))
    profile = read(path)
    assert profile.model == "\\x1b[2J"
    assert profile.source.startswith("\\n\\x07xx")
    assert len(profile.source) < 210


def test_many_problems_are_cut_short_and_can_be_told_without_the_text(tmp_path: Path) -> None:
    """The first ten; what a file outside the scenario's directory says is nobody's business."""
    path = tmp_path / "x.csv"
    path.write_text("kind,tokens,seconds\n" + "secret,1,1\n" * 50)
    assert problems_of(path).count("secret") == MAX_PROBLEMS
    assert "secret" not in problems_of(path, quotes=False)
    path.write_text("root:secret:0\n")
    assert "secret" not in problems_of(path, quotes=False)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
def test_no_file_is_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Whatever stands there is a profile or refused in words."""
    for suffix in (".csv", ".parquet"):
        path = tmp_path_factory.getbasetemp() / f"any{suffix}"
        path.write_bytes(data)
        with pytest.raises(ScenarioError):
            read(path)


def planned(directory: Path, *changes: str) -> Plan:
    """The plan of the base scenario in a directory of its own, with a short workload."""
    path = directory / "base.yaml"
    path.write_text(BASE, encoding="utf-8")
    (directory / "profiles").mkdir(exist_ok=True)
    (directory / "profiles/good.csv").write_bytes(GOOD.read_bytes())
    short = "workload={kind: lognormal, rate: 2/s, mu: 7, sigma: 1, low: 512, high: 4096, output_tokens: 64}"
    return load_and_resolve(path, overrides=[short, "policy.threshold=1000", *changes])[1]


def told(plan: Plan, name: str) -> Config:
    agent = next(one for one in plan.agents if one.name == name)
    return msgspec.json.decode(agent_config(plan, agent, lambda host: host), type=Config)


def test_the_reference_computes_what_was_completed(tmp_path: Path) -> None:
    """Of all requests it is told the given ones; the client all."""
    real = ("compute=real", "model=tiny_hybrid", "transport={connections: 2}")
    mine = [f"clusters.{name}.profile={TINY}" for name in ("prfaas", "pd")]
    plan = planned(tmp_path, *real, *mine)
    reference = next(one for one in plan.agents if one.role == "reference")
    some = {plan.requests[0].id, plan.requests[2].id}
    config = msgspec.json.decode(agent_config(plan, reference, lambda host: host, some), type=Config)
    assert {one.id for one in config.requests} == some
    assert len(told(plan, "client").requests) == len(plan.requests)


def test_a_scenario_takes_a_profile_by_its_path(tmp_path: Path) -> None:
    """The plan carries it, each agent finds it by its name; that of the other cluster stays as it is."""
    plan = planned(tmp_path, "clusters.pd.profile=profiles/good.csv")
    assert plan.profiles.keys() == {"profiles/good.csv"}
    assert {one.profile for one in plan.agents if one.cluster == "prfaas"} == {"h200"}
    config = told(plan, "decode-1")
    profile = find(config.me.profile, config.profiles)
    assert (profile.name, profile.bs_max, profile.knots) == (
        "profiles/good.csv",
        8,
        ((512, 0.5), (4096, 2.5)),
    )
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
    assert planned(tmp_path).profiles == {}
    assert find("h20", planned(tmp_path).profiles) is PROFILES["h20"]


def test_extrapolated_a_profile_takes_any_length(tmp_path: Path) -> None:
    """Beside the same file as it is: two profiles, and each cluster has its own."""
    longer = (
        "workload={kind: lognormal, rate: 2/s, mu: 7, sigma: 1, low: 1, high: 20000, output_tokens: 9000}"
    )
    both = "clusters.pd.profile={file: profiles/good.csv, extrapolate: true}"
    plan = planned(tmp_path, both, longer, "cache={prfaas: 2GB, pd: 2GB}")
    assert {one.profile for one in plan.agents if one.role == "decode"} == {
        "profiles/good.csv (extrapolated)"
    }
    assert find("profiles/good.csv (extrapolated)", plan.profiles).prefill_s(20_000) > 2.5
    plan = planned(tmp_path, both, "clusters.prfaas.profile=profiles/good.csv")
    assert sorted(plan.profiles) == ["profiles/good.csv", "profiles/good.csv (extrapolated)"]
    with pytest.raises(ScenarioError, match="at most 4096"):
        planned(tmp_path, both, "clusters.prfaas.profile=profiles/good.csv", longer)


def test_a_trace_with_inputs_that_are_too_short_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the trace, with the shortest of them."""
    monkeypatch.delenv("TESTBED_TRACES", raising=False)
    (tmp_path / "trace.jsonl").write_bytes((ROOT / "tests/data/trace.jsonl").read_bytes())
    (tmp_path / "long.csv").write_text("kind,tokens,seconds\nprefill,8000,1\nprefill,200000,30\n")
    trace = "workload={kind: mooncake, trace: trace.jsonl, clamp: true}"
    with pytest.raises(ScenarioError, match=r"inputs are too short, down to \d+ tokens") as caught:
        planned(tmp_path, "clusters.prfaas.profile=./long.csv", trace)
    assert "at least 8000 tokens" in str(caught.value)
    assert "extrapolate: true" in str(caught.value)


def test_sessions_are_measured_with_what_they_share(tmp_path: Path) -> None:
    """A first prompt behind shared tokens is as long as both."""
    sessions = (
        "workload={{kind: sessions, rate: 0.5/s, turns: 2,"
        " first: {{mu: 6, sigma: 1, low: {low}, high: 1000}},"
        " increment: {{mu: 5, sigma: 1, low: 50, high: 200}}, think: 2s, output_tokens: 64,"
        " shared: {{prefixes: 2, tokens: 600, zipf: 1}}}}"
    )
    (tmp_path / "from.csv").write_text("kind,tokens,seconds\nprefill,700,1\nprefill,9000,30\n")
    file = "clusters.prfaas.profile=./from.csv"
    assert min(one.input_tokens for one in planned(tmp_path, file, sessions.format(low=100)).requests) >= 700
    with pytest.raises(ScenarioError, match=r"99 tokens with 600 shared ones are fewer(.|\n)*at least 100"):
        planned(tmp_path, file, sessions.format(low=99))
