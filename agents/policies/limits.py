"""How long a user's code may run, and what is said of how it broke."""

import dis
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MOST_LINES: Final = 20_000_000
"""Lines that one call may execute, those of what it calls included; each call and return counts as one, too.

Counted, not timed: in virtual time an endless loop takes no time at all, and where it ends is the same
everywhere. What C code does is not seen.
"""
MOST_CHARACTERS: Final = 500
"""Of what an exception says of itself."""


class _Endless(BaseException):
    """Raised in the middle of a loop; no `except Exception` takes it for one of its own."""


def limited(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call it; it is broken off after `MOST_LINES`."""
    left = MOST_LINES
    over: list[_Endless] = []

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if event == "call" and _stands_still(frame.f_code):
            frame.f_trace_opcodes = True
        left -= 1
        if left < 0:
            over.append(_Endless())
            raise over[0]
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = call(*args, **kwargs)
    finally:
        sys.settrace(before)
    if over:  # somebody has caught it
        raise over[0]
    return result


@cache
def _stands_still(code: CodeType) -> bool:
    """Whether it has a loop of one instruction (`while True: pass` in one line), which begins no line."""
    jumps = (one for one in dis.get_instructions(code) if one.opcode in dis.hasjrel)
    return any(one.argval == one.offset for one in jumps)


def broken(
    what: str, error: BaseException, is_own: Callable[[Mapping[str, Any]], bool] = lambda _: False
) -> str:
    """What a call died of, and where: the innermost line of a module that `is_own`, else the innermost."""
    steps = [step for step in traceback.walk_tb(error.__traceback__) if step[0].f_globals is not globals()]
    own = [step for step in steps if is_own(step[0].f_globals)]
    frame, line = (own or steps)[-1]
    file = frame.f_code.co_filename
    place = f"{file if own else PurePath(file).name}:{line}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{what} raised SyntaxError: {error.msg} at {error.filename}:{error.lineno}"
    if isinstance(error, _Endless):
        return f"{what} ran for more than {MOST_LINES:,} lines at {place}"
    return f"{what} raised {_said(error)} at {place}"


def _said(error: BaseException) -> str:
    try:
        text = repr(error)
    except Exception:  # noqa: BLE001 - a user's class may do anything
        text = type(error).__name__
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]}..."
    return text.encode("utf-8", "backslashreplace").decode()
