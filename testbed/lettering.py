"""Text that somebody else wrote, as it may go to a terminal and into a file."""

from __future__ import annotations

import re
from typing import Final

_NO_LETTERS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def shown(text: str) -> str:
    """A question mark for each character that controls a terminal, has no bytes in UTF-8 or no place in XML.

    New lines and tabs stay.
    """
    return _NO_LETTERS.sub("?", text)
