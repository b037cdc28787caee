"""Which kernel a run takes."""

from __future__ import annotations

from testbed.errors import MachineError, Problem, ScenarioError
from testbed.kernel import Clock, Kernel
from testbed.kernel.host import Host
from testbed.kernel.uml import Uml
from testbed.kernel.vm import Vm

KERNELS: dict[str, type[Uml | Host | Vm]] = {"uml": Uml, "host": Host, "vm": Vm}
AUTO = ("uml", "host")
"""What `auto` tries, in this order; a VM only who asks for it."""
STOCK = ("host", "vm")
"""Those that know no virtual clock."""


def choose(name: str, clock: Clock) -> Kernel:
    """The kernel called `name`; for `auto` the first one that this machine can use.

    Raises ScenarioError for an unknown name, and MachineError with everything that is in the way of
    every kernel that was considered.
    """
    candidates = list(AUTO) if name == "auto" else [name]
    problems = []
    for candidate in candidates:
        if candidate not in KERNELS:
            raise ScenarioError(
                Problem("--kernel", f"no kernel {name!r}", allowed=", ".join(["auto", *KERNELS]))
            )
        kernel = KERNELS[candidate]()
        found = kernel.probe(clock)
        if not found:
            return kernel
        problems += found
    raise MachineError(*problems)
