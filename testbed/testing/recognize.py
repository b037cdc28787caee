"""Whether a file is a scenario, from its keys alone: other people's YAML is neither parsed nor touched.

A scenario that is broken is one still: its YAML need not be valid, nor need all that it has to have be there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

LARGEST_BYTES: Final = 256 * 1024
"""No scenario may be larger."""
_KEY: Final = re.compile(rb"^[\"']?([a-z_]+)[\"']?[ \t]*:(?=\s|$)", re.MULTILINE)
_ALWAYS: Final = {b"name", b"link"}
_ONE_OF: Final = {b"topology", b"workload", b"duration", b"question"}


def is_yaml(path: Path) -> bool:
    """Whether its name says that it is YAML."""
    return path.suffix in {".yaml", ".yml"}


def is_scenario(path: Path) -> bool:
    """Whether the file is a mapping with the keys of a scenario; not so a sweep, nor what cannot be read.

    A scenario has `name`, `link` and at least one of `question`, `duration`, `topology`, `workload`.
    """
    if not is_yaml(path):
        return False
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return False
        text = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError:
        return False
    keys = set(_KEY.findall(text))
    return keys >= _ALWAYS and bool(keys & _ONE_OF) and b"sweep" not in keys
