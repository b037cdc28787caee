"""What the plugin keeps with pytest's configuration; light, since every session of pytest loads it."""

from __future__ import annotations

from typing import Final

import pytest

ITEM: Final = pytest.StashKey[pytest.Item]()
"""The test that is going on, whose report gets what is said of its runs."""
SESSION: Final = pytest.StashKey[str]()
"""A name that all processes of this session have, and no other session."""
