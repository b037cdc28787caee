"""What a result depends on beside its plan: the kernel, the project's source, what both are run with."""

from __future__ import annotations

import hashlib
import platform
import sys
from importlib.metadata import version

from testbed.kernel import digest
from testbed.kernel.build import find_kernel
from testbed.kernel.image import PROJECT
from testbed.manifest import PACKAGES

Environment = dict[str, str]


def here() -> Environment:
    """Of this machine: digests and versions by name."""
    kernel = find_kernel()
    return {
        "kernel": digest.of_file(kernel) if kernel else platform.release(),
        "project": digest.of_project(PROJECT),
        "python": platform.python_version(),
        "byte order": sys.byteorder,
        **{name: version(name) for name in PACKAGES},
    }


def differences(one: Environment, other: Environment) -> list[str]:
    """What is not the same in both, for people."""
    return [
        f"{name} {one.get(name, 'none'):.12} and {other.get(name, 'none'):.12}"
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    ]


def digest_of(plan: bytes, environment: Environment) -> str:
    """The name of a result: of equal ones it is equal, SHA-256 as hexadecimal text."""
    parts = [f"{name}={value}\n".encode() for name, value in sorted(environment.items())]
    return hashlib.sha256(b"".join(parts) + plan).hexdigest()
