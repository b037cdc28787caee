"""Policies that do not come with the testbed: a user's own, by import path, and the log of another run."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from agents.config import Log, RecordedRoute, RecordedState
from agents.policies import POLICIES, own
from agents.policies.failure import PolicyFailure
from agents.policies.find import HTTP, RECORDED, find
from agents.policies.guard import Guarded
from testbed import plan
from testbed.errors import Problem, ScenarioError
from testbed.resolve.findings import Findings
from testbed.resolve.in_child import in_child
from testbed.scenario.model import Policy

PROJECT: Final = Path(__file__).resolve().parents[2]
NAMES: Final = (*POLICIES, RECORDED, HTTP)
SHOWN: Final = 5
LENGTH: Final = ("uncached_tokens", "cached_pd_tokens")
"""Columns that add up to the tokens of a prompt."""
COLUMNS: Final = (
    "kind",
    "step",
    "id",
    *LENGTH,
    *RecordedRoute.__struct_fields__,
    *RecordedState.__struct_fields__,
)


@dataclass(frozen=True)
class Given:
    """A policy to be asked, and what the plan has to say so that it can be asked elsewhere."""

    name: str
    policy: Guarded | None = None
    """None: the user's own, which is made where it cannot do harm."""
    files: dict[str, plan.SourceFile] = field(default_factory=dict)
    directory: str = ""
    log: Log | None = None
    log_sha256: str = ""
    log_tokens: dict[str, int] = field(default_factory=dict)
    """Of the prompts that the log places, by the ids of requests."""

    def made(self) -> Guarded:
        """The policy itself; PolicyFailure when it is the user's own and cannot be made."""
        return self.policy or find(self.name, {path: file.text for path, file in self.files.items()})


def find_policy(spec: Policy, directory: Path, findings: Findings) -> Given | None:
    """The policy that the scenario in `directory` names; None, and problems, when there is none. None without
    problems: nobody can be asked before the run.
    """
    if spec.log is not None and spec.name != RECORDED:
        findings.add(("policy", "log"), f"has no effect on {spec.name}", f"only with name: {RECORDED}")
    if own.is_own(spec.name):
        where = findings.source.where(("policy", "name"))

        def load() -> Given:
            return replace(load_own(where, spec.name, directory), policy=None)

        try:
            return in_child(load)
        except ScenarioError as error:
            findings.add_error(("policy", "name"), error)
        except PolicyFailure as failure:
            findings.add(("policy", "name"), f"{spec.name}: {failure}")
        return None
    if spec.name == RECORDED:
        return _recorded(spec, directory, findings)
    if findings.name_unknown(("policy", "name"), "policy", spec.name, NAMES) or spec.name == HTTP:
        return None
    return Given(spec.name, find(spec.name, {}))


def load_own(where: str, name: str, *first: Path) -> Given:
    """The user's policy of this import path, looked for in `first`, here, and on Python's path.

    Raises:
        ScenarioError: there is none, or it cannot be imported or made; the problem is at `where`.
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute or "itself")):
        allowed = "module:Class, such as my_scheduler:MyScheduler"
        raise ScenarioError(Problem(where, f"{name} is no import path", allowed))
    root = own_root(module, *first)
    if root is None:
        package, file = own.files_of(module)
        found = f"there is no module {module}: neither {file} nor {package}"
        allowed = "a file beside the scenario, in the current directory, or on Python's path"
        raise ScenarioError(Problem(where, found, allowed))
    sources = Sources(root, module)
    try:
        with _path_of_a_run():
            policy = own.load(name, sources.read)
    except PolicyFailure as failure:
        next_step = f"it is in {'the current directory' if root == Path() else root}"
        raise ScenarioError(Problem(where, f"{name}: {failure}", next_step=next_step)) from None
    return Given(name, Guarded(policy, own=True), sources.files(), str(root.resolve()))


def own_root(module: str, *first: Path) -> Path | None:
    """The directory that has the module: one of `first`, the current one, or the first on Python's path."""
    for root in (*first, Path(), *map(Path, sys.path)):
        if any((root / file).is_file() for file in own.files_of(module)):
            return root
    return None


class Sources:
    """The user's modules below `root`, remembered as they were when they were read."""

    def __init__(self, root: Path, module: str) -> None:
        self._root, self._package = root, module.partition(".")[0]
        self._installed = root.resolve() in _library()
        self._read: dict[str, bytes | None] = {}

    def read(self, file: str) -> str | None:
        """The text of one; where others' packages lie, too, only those of the policy's own package."""
        if self._installed and file.partition("/")[0] not in {self._package, f"{self._package}.py"}:
            return None
        if file not in self._read:
            path = self._root / file
            self._read[file] = path.read_bytes() if path.is_file() else None
        text = self._read[file]
        return None if text is None else importlib.util.decode_source(text)

    def files(self) -> dict[str, plan.SourceFile]:
        """What was read, by path."""
        return {
            file: plan.SourceFile(
                sha256=hashlib.sha256(text).hexdigest(), text=importlib.util.decode_source(text)
            )
            for file, text in sorted(self._read.items())
            if text is not None
        }


def _library() -> set[Path]:
    return {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}


@contextmanager
def _path_of_a_run() -> Iterator[None]:
    """Modules are found where those of a run are: Python's own, installed packages, the testbed."""
    before = sys.path
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    there = {*_library(), stdlib / "lib-dynload", PROJECT}
    sys.path = [str(PROJECT), *(one for one in before if Path(one).resolve() in there)]
    try:
        yield
    finally:
        sys.path = before


def _recorded(spec: Policy, directory: Path, findings: Findings) -> Given | None:
    if spec.log is None:
        findings.add(("policy",), f"{RECORDED} needs a log", "log: a run directory, or its decisions.parquet")
        return None
    path = directory / spec.log
    if path.is_dir():
        path /= "record/decisions.parquet"
    if not path.is_file():
        allowed = "a run directory, or its decisions.parquet, relative to the scenario's own directory"
        findings.add(("policy", "log"), f"there is no file {path}", allowed)
        return None
    read = _read_log(path, findings)
    if read is None:
        return None
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Given(RECORDED, find(RECORDED, {}), log=read[0], log_sha256=sha256, log_tokens=read[1])


def _read_log(path: Path, findings: Findings) -> tuple[Log, dict[str, int]] | None:
    """What the table of decisions says, and how long the prompts were; of a request that was placed twice the
    last word.
    """
    import polars as pl  # noqa: PLC0415 - half a second, which other policies do not need
    from polars.exceptions import PolarsError  # noqa: PLC0415 - same

    try:
        table = pl.read_parquet(path, glob=False)
    except (OSError, PolarsError) as error:
        findings.add(("policy", "log"), f"{path} cannot be read: {error}", "the decisions.parquet of a run")
        return None
    missing = [name for name in dict.fromkeys(COLUMNS) if name not in table.columns]
    if missing:
        found = f"{path} has no column {', '.join(missing)}"
        findings.add(("policy", "log"), found, "the decisions.parquet of a run")
        return None
    table = table.sort("step", maintain_order=True)
    try:
        placed = {
            str(row["id"]): row
            for row in table.filter(pl.col("kind") == "route").iter_rows(named=True)
            if row["route"] is not None
        }
        routes = {
            name: msgspec.convert(_fields(row, RecordedRoute), RecordedRoute) for name, row in placed.items()
        }
        tokens = {name: sum(msgspec.convert(row[one], int) for one in LENGTH) for name, row in placed.items()}
        states = tuple(
            msgspec.convert(_fields(row, RecordedState), RecordedState)
            for row in table.filter(pl.col("kind") == "control").iter_rows(named=True)
        )
    except (PolarsError, msgspec.ValidationError) as error:
        findings.add(("policy", "log"), f"{path} is damaged: {error}", "the decisions.parquet of a run")
        return None
    return Log(routes=routes, states=states), tokens


def _fields(row: dict[str, Any], kind: type[msgspec.Struct]) -> list[Any]:
    return [row[name] for name in kind.__struct_fields__]


def check_log(
    given: Given, requests: tuple[plan.Request, ...], instances: dict[str, int], findings: Findings
) -> None:
    """The log is of these requests, and places every one where somebody computes."""
    assert given.log is not None
    routes = given.log.routes
    allowed = "the log of a run with the same requests: the same workload, seed and duration"
    lacking = [request.id for request in requests if str(request.id) not in routes]
    others = [
        one.id for one in requests if given.log_tokens.get(str(one.id), one.input_tokens) != one.input_tokens
    ]
    for what, ids in (("does not place", lacking), ("has other lengths of", others)):
        if ids:
            found = f"{what} {len(ids)} of {len(requests)} requests: {_first(ids)}"
            findings.add(("policy", "log"), found, allowed)
    placed = [routes[str(request.id)] for request in requests if str(request.id) in routes]
    for cluster, count in instances.items():
        sent = sum(one.route == cluster for one in placed)
        if sent and not count:
            found = f"sends {sent} requests to {cluster}, where no instance does prefill"
            findings.add(("policy", "log"), found, f"1 or more prefill instances in {cluster}")


def _first(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:SHOWN])) + (", ..." if len(ids) > SHOWN else "")
