"""Mininet and pyroute2, without what they load beside what is used: in a guest that takes three seconds.

pyroute2's own `__init__` loads all of its 160 modules; here they are found without it. Mininet compares
versions of Open vSwitch, which nobody has here, by a class of distutils, whose place setuptools has taken.
"""
# ruff: noqa: E402 - the stand-ins must be there first

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_distutils = ModuleType("distutils.version")
vars(_distutils)["StrictVersion"] = str
sys.modules.setdefault("distutils.version", _distutils)

_spec = find_spec("pyroute2")
assert _spec is not None
sys.modules.setdefault("pyroute2", module_from_spec(_spec))

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Host, Switch
from pyroute2.netlink import nla
from pyroute2.netlink.rtnl.tcmsg import common_act, plugins, tcmsg

__all__ = [
    "Host",
    "Intf",
    "Link",
    "Mininet",
    "Switch",
    "common_act",
    "nla",
    "plugins",
    "prompt_class",
    "tcmsg",
]


def prompt_class() -> Any:
    """Mininet's prompt, which no guest needs, and which says what it has to say by a logger."""
    from mininet.cli import CLI  # noqa: PLC0415 - see above
    from mininet.log import setLogLevel  # noqa: PLC0415

    setLogLevel("output")
    return CLI
