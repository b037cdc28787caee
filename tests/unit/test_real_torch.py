"""Who loads torch: those that compute, nobody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
START = """
import sys
from pathlib import Path
import msgspec
from agents.config import Compute, Request
from tests.unit.agent_config import make_config
def settings(name, compute=None):
    small = msgspec.structs.replace(make_config(name, Path(sys.argv[1])), model="tiny_hybrid", scale=1.0)
    return msgspec.structs.replace(small, compute=compute)
"""
END = "\nprint('torch' in sys.modules)"
REAL = "Compute(seed=1)"
INSTANCE = """
import asyncio
from agents.instance import Instance
async def main():
    Instance(settings({}))
asyncio.run(main())
"""
CLIENT = """
from agents.client import Client
Client(settings("client", {}))._prompt(Request(id=1, t_ns=0, input_tokens=9, output_tokens=1))
"""
PROGRAMS = {
    "the router of real kernels": (
        f"from agents.router import build; build(settings('router', {REAL}))",
        False,
    ),
    "the client of real kernels": (CLIENT.format(REAL), False),
    "prefill that replays": (INSTANCE.format("'prefill-a1'"), False),
    "decode that replays": (INSTANCE.format("'decode-b2'"), False),
    "the testbed": ("import testbed.run, testbed.judge, testbed.inside", False),
    "prefill with real kernels": (INSTANCE.format(f"'prefill-a1', {REAL}"), True),
    "decode with real kernels": (INSTANCE.format(f"'decode-b2', {REAL}"), True),
    "the reference": ("import agents.reference", True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_torch_is_loaded_by_those_that_compute(name: str, tmp_path: Path) -> None:
    """It takes a second and hundreds of MB, which nobody else should pay for."""
    program, loads = PROGRAMS[name]
    told = subprocess.run(
        [sys.executable, "-c", START + program + END, str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (told.stdout, told.stderr) == (f"{loads}\n", "")
