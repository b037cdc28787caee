"""What can go wrong, as a tree.

TestbedError
├── ScenarioError    the scenario or the arguments are wrong                 exit code 3
├── MachineError     this machine lacks something the run needs              exit code 4
└── RunError         the run happened, but cannot be trusted                 exit code 2
    ├── KernelError    the guest died, hung or could not be started
    ├── ShapingError   the kernel did not take what was set
    └── AgentError     an agent did not come up or died

Errors are for what a user or the world can cause; a bug is an `assert`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing a user can mend: where it is, what stands there, what may stand there."""

    where: str
    """`file:line: path.in.the.file`, or the command-line option."""
    found: str
    """What is wrong, with the value as written."""
    allowed: str = ""
    """What would be accepted."""
    next_step: str = ""
    """What to do about it, when `allowed` does not say it."""

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.found}"]
        if self.allowed:
            lines.append(f"    allowed: {self.allowed}")
        if self.next_step:
            lines.append(f"    next: {self.next_step}")
        return "\n".join(lines)


class TestbedError(Exception):
    """Root of the tree; carries every problem of its phase, never only the first."""

    exit_code = 2
    __test__ = False  # pytest takes any Test* class for a test

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class ScenarioError(TestbedError):
    """The scenario file or the arguments are wrong; nothing was started."""

    exit_code = 3


class MachineError(TestbedError):
    """This machine lacks something; nothing was started."""

    exit_code = 4


class RunError(TestbedError):
    """The run took place but its measurements cannot be trusted."""


class KernelError(RunError):
    """The guest kernel died, hung or could not be started."""


class ShapingError(RunError):
    """A value read back from the kernel is not the value that was set."""


class AgentError(RunError):
    """An agent did not become ready, or died."""
