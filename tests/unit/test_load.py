"""Loading: every wrong file is refused in words, with its place; overrides act like edits of the file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.profiles import MODELS, PROFILES
from testbed.errors import Problem, ScenarioError
from testbed.metrics import METRICS
from testbed.resolve import load_and_resolve
from testbed.resolve.own_policy import NAMES
from testbed.scenario.load import Loaded, load, validate
from testbed.scenario.overrides import apply_overrides
from testbed.scenario.quantities import Section
from testbed.scenario.source import parse_source, read_source
from testbed.scenario.timeline import ENTRIES, RampEntry, SetEntry
from testbed.sweep.file import is_sweep_file

ROOT = Path(__file__).parents[2]
BASE = ROOT / "tests/data/base.yaml"
PLACEHOLDERS: dict[str, Iterable[str]] = {
    "entries": ENTRIES,
    "policies": NAMES,
    "models": MODELS,
    "profiles": PROFILES,
    "signals": [name for name, metric in METRICS.items() if "recovery" in metric.kinds],
}
BAD = sorted((ROOT / "tests/bad_scenarios").glob("*.yaml"))
GOOD = sorted(path for path in (ROOT / "scenarios").rglob("*.yaml") if not is_sweep_file(path))


def problems_of(path: Path, *overrides: str) -> str:
    """The message with which a file is refused."""
    with pytest.raises(ScenarioError) as caught:
        load(path, overrides)
    return str(caught.value)


def base_with(*overrides: str) -> Loaded:
    """The base scenario with some values changed."""
    return load(BASE, overrides)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_bad_scenarios_say_exactly_this(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong scenario is refused with exactly the message beside it; {models} stands for all there are."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("TESTBED_TRACES", raising=False)
    with pytest.raises(ScenarioError) as caught:
        load_and_resolve(path.relative_to(ROOT))
    expected = path.with_suffix(".txt").read_text()
    for placeholder, names in PLACEHOLDERS.items():
        expected = expected.replace(f"{{{placeholder}}}", ", ".join(names))
    assert expected == f"{caught.value}\n"


def test_every_bad_scenario_has_its_message() -> None:
    """No message stands without a scenario."""
    messages = sorted((ROOT / "tests/bad_scenarios").glob("*.txt"))
    assert [path.stem for path in BAD] == [path.stem for path in messages]


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_our_scenarios_load(path: Path) -> None:
    """Every scenario we ship is valid, and is named like its file, or its file and directory."""
    assert load(path).scenario.name in {path.stem, f"{path.parent.name}_{path.stem}"}


def test_a_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    assert f"{tmp_path}/x.yaml: there is no such file" == problems_of(tmp_path / "x.yaml")


def test_a_directory(tmp_path: Path) -> None:
    """A directory is no scenario."""
    assert problems_of(tmp_path).startswith(f"{tmp_path}: is a directory")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are named with their line."""
    path = tmp_path / "x.yaml"
    path.write_bytes(b"name: x\nquestion: \xff\n")
    assert problems_of(path).startswith(f"{path}:2: byte 0xff is not UTF-8")


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    """A file beyond any scenario's size is refused before it is parsed."""
    path = tmp_path / "x.yaml"
    path.write_bytes(b"#" * 2**20)
    assert problems_of(path).startswith(f"{path}: is larger than 256 KiB")


def test_control_characters() -> None:
    """YAML does not allow control characters."""
    with pytest.raises(ScenarioError, match=r"x\.yaml:2: character U\+0007 is not allowed"):
        parse_source("x.yaml", b"a: 1\nb: \x07\n")


def test_a_byte_order_mark_is_no_problem() -> None:
    """Editors on other systems put a mark in front."""
    assert parse_source("x.yaml", b"\xef\xbb\xbfa: 1\n").data == {"a": 1}


def test_lines_are_remembered() -> None:
    """Every value knows its line, and values without one that of the value around them."""
    source = parse_source("x.yaml", b"a:\n  - 1\n  - b: 2\n")
    assert (source.line(("a", 0)), source.line(("a", 1, "b")), source.line(("a", 1, "c"))) == (2, 3, 3)


def read_or_refuse(text: str) -> None:
    """Read a text, and let nothing but a ScenarioError come of it."""
    with contextlib.suppress(ScenarioError):
        validate(parse_source("x.yaml", text.encode(errors="surrogatepass")))


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text whatever makes the reader fail in another way than with a ScenarioError."""
    read_or_refuse(text)


YAML_PIECES = st.lists(
    st.sampled_from(
        [
            "a",
            "name",
            ": ",
            "\n",
            "  ",
            "- ",
            "[",
            "]",
            "{",
            "}",
            ", ",
            "&x ",
            "*x",
            "!!int ",
            "'",
            '"',
            "|",
            "?",
            "1",
            "timeline: ",
            "link: ",
            "set: ",
            "<<: ",
            "%",
            "---",
            "...",
            "#",
            "~",
            "\t",
        ]
    ),
    max_size=30,
).map("".join)


@given(YAML_PIECES)
@settings(max_examples=500, deadline=None)
def test_any_yaml_is_read_or_refused(text: str) -> None:
    """No arrangement of YAML's signs makes the reader fail in another way."""
    read_or_refuse(text)


WORDS_OF_A_DIRECTION = [
    f"link.a_to_b.{name}" for name in ("loss", "jitter", "queue", "slot", "noise", "token_bucket", "preset")
]


@pytest.mark.parametrize(
    "section",
    [
        "link",
        "timeline",
        "expect",
        "workload",
        "clusters.pd",
        "timeline.0",
        "timeline.0.set",
        "timeline.3.background.from",
        "capture",
        "cache",
        "transport",
        *WORDS_OF_A_DIRECTION,
    ],
)
@pytest.mark.parametrize(
    "value", ["3", "text", "[]", "[1]", "{}", "{a: 1}", "null", "[[]]", "{1: 2}", "1.5%"]
)
def test_any_value_anywhere_is_accepted_or_refused(section: str, value: str) -> None:
    """A value of the wrong form is a problem like any other."""
    problems: tuple[Problem, ...] = ()
    try:
        base_with(f"{section}={value}")
    except ScenarioError as error:
        problems = error.problems
    assert all(problem.where.startswith(f"--set {section}={value}") for problem in problems)


def test_an_override_replaces_a_value() -> None:
    """--set changes what the file says, in mappings and in lists."""
    scenario = base_with("link.a_to_b.rate=50gbit", "timeline.0.at=6s", "policy.threshold=30000").scenario
    assert scenario.policy is not None
    assert (
        scenario.link.a_to_b.rate,
        scenario.timeline[0].at,
        scenario.policy.threshold,
    ) == (50 * 10**9, 6 * 10**9, 30_000)


def test_an_override_adds_a_key() -> None:
    """A key that the file leaves out can be set, with the mappings around it."""
    scenario = base_with("transport.connections=7", "policy.params.gain=1.5").scenario
    assert scenario.policy is not None
    assert (scenario.transport.connections, scenario.policy.params) == (7, {"gain": 1.5})


def test_an_override_takes_any_yaml() -> None:
    """A whole mapping can be set."""
    scenario = base_with("timeline.0.set={rate: 2gbit, loss: 1%}").scenario
    entry = scenario.timeline[0]
    assert isinstance(entry, SetEntry)
    assert (entry.set.rate, entry.set.loss) == (2 * 10**9, 0.01)


def test_later_overrides_win() -> None:
    """Overrides act in order."""
    assert base_with("seed=2", "seed=3").scenario.seed == 3


def test_overrides_leave_the_file_alone() -> None:
    """Overriding makes a copy; the same source can be used again."""
    source = read_source(BASE)
    apply_overrides(source, ["duration=1s"])
    assert source.data["duration"] == "20s"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("duration", "--set duration: is no override"),
        ("=3", "--set =3: is no override"),
        ("link..rate=3", "--set link..rate=3: is no override"),
        ("timeline.9.at=3s", "--set timeline.9.at=3s: timeline has no item 9\n    allowed: 0 to 3"),
        ("timeline.x.at=3s", "--set timeline.x.at=3s: timeline has no item x"),
        ("timeline.-1.at=3s", "--set timeline.-1.at=3s: timeline has no item -1"),
        ("duration.x=3", "--set duration.x=3: duration is a single value"),
        ("link.a_to_b.rate=50", "--set link.a_to_b.rate=50: link.a_to_b.rate: 50 has no unit"),
        ("link.a_to_b.rat=50", "--set link.a_to_b.rat=50: link.a_to_b.rat: unknown key rat"),
        ("duration=", '--set duration=: duration: "" is no duration'),
        ("link={", "--set link={: not valid YAML"),
        ("name=\udce9", "--set name=\udce9: byte 0xe9 is not UTF-8"),
    ],
)
def test_a_wrong_override_is_named(override: str, message: str) -> None:
    """A problem that an option brought in is reported with the option, not with a line."""
    assert message in problems_of(BASE, override)


def test_all_wrong_overrides_are_named() -> None:
    """One wrong option does not hide the next."""
    lines = problems_of(BASE, "duration", "timeline.9.at=3s").splitlines()
    assert sum(line.startswith("--set") for line in lines) == 2


@given(st.integers(min_value=1, max_value=10**15))
@settings(max_examples=30, deadline=None)
def test_an_override_is_an_edit(rate_bps: int) -> None:
    """Setting a value by option and writing it into the file give the same scenario."""
    edited = BASE.read_bytes().replace(b"{rate: 1gbit}", b"{rate: %dbit}" % rate_bps)
    by_file = validate(parse_source("x.yaml", edited))
    assert by_file.scenario == base_with(f"timeline.0.set.rate={rate_bps}bit").scenario


def test_a_misspelt_kind_of_entry_is_recognised() -> None:
    """An entry whose kind is not known is answered with the kind that was meant."""
    assert "did you mean wave?" in problems_of(
        BASE, "timeline.0={at: 5s, link: a_to_b, wavee: {rate: 1gbit}}"
    )


def test_a_misspelt_key_beside_a_preset_is_recognised() -> None:
    """A preset does not hide what is wrong beside it."""
    message = problems_of(BASE, "link.a_to_b={preset: metro-100g, jiter: 1ms}")
    assert "unknown key jiter" in message
    assert "did you mean jitter?" in message


def test_problems_are_in_reading_order() -> None:
    """The first line of the message is about the first wrong line of the file."""
    lines = problems_of(ROOT / "tests/bad_scenarios/bare_numbers.yaml").splitlines()
    numbers = [int(line.split(":")[1]) for line in lines if not line.startswith(" ")]
    assert sorted(numbers) == numbers


def test_ramps_and_partitions_read() -> None:
    """YAML's `for` and `over` become times."""
    entry = base_with().scenario.timeline[1]
    assert isinstance(entry, RampEntry)
    assert (entry.over, entry.steps) == (2 * 10**9, None)


def sections(section: type[Section] = Section) -> list[type[Section]]:
    """All classes of sections that a scenario is made of."""
    return [each for child in section.__subclasses__() for each in (child, *sections(child))]


def test_the_guide_names_every_field() -> None:
    """docs/writing-a-scenario.md leaves no field out."""
    guide = (ROOT / "docs/writing-a-scenario.md").read_text()
    keys = {
        key
        for section in sections()
        if section.__module__.startswith("testbed.scenario.")
        for key in section.yaml_keys()
        if key not in {"metric", "low", "high"}
    }
    assert not {key for key in keys if not re.search(rf"(?<![a-z_]){key}[:`,]", guide)}


def test_the_guide_names_every_metric() -> None:
    """docs/writing-a-scenario.md leaves no metric out."""
    guide = (ROOT / "docs/writing-a-scenario.md").read_text()
    patterns = re.findall(r"^\| (`.+?`) \|", guide, re.MULTILINE)
    named = {
        name for pattern in patterns for part in re.findall(r"`(.+?)`", pattern) for name in unfolded(part)
    }
    statistics = {f"{name}.{statistic}" for name in named for statistic in ("mean", "min", "max")}
    assert not set(METRICS) - named - statistics


def test_the_guides_examples_are_valid() -> None:
    """Every piece of YAML in docs/writing-a-scenario.md is accepted in its place."""
    guide = (ROOT / "docs/writing-a-scenario.md").read_text()
    for text in re.findall(r"```yaml\n(.+?)```", guide, re.DOTALL):
        source = read_source(BASE)
        for key, value in parse_source("guide", text.encode()).data.items():
            (source.data["link"]["a_to_b"] if key == "loss" else source.data)[key] = value
        assert validate(source).scenario.name == "base"


def unfolded(pattern: str) -> list[str]:
    """`a.{b,c}` as `a.b` and `a.c`."""
    group = re.search(r"\{(.+?)\}", pattern)
    if group is None:
        return [pattern]
    return [name for word in group[1].split(",") for name in unfolded(pattern.replace(group[0], word, 1))]
