"""A policy of the user's own: a class or module by its import path, `module:attribute`.

Its modules come as texts, not from a directory: what runs is what the plan says, wherever that is.
"""

import importlib.util
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, Final, cast

from agents.policies.failure import PolicyFailure
from agents.policies.limits import broken, limited
from agents.policies.view import Policy

FUNCTIONS: Final = ("start", "route", "update")
TAKEN: Final = frozenset({"agents", "testbed", "topologies", *sys.stdlib_module_names})
"""Modules that are never the user's."""
Read = Callable[[str], str | None]
"""The text of a file by its path below the user's directory; None: there is none."""


def is_own(name: str) -> bool:
    """Whether the name of a policy is an import path."""
    return ":" in name


def files_of(module: str) -> tuple[str, str]:
    """Where a module may be, by its dotted name: as a package, or as a file."""
    stem = module.replace(".", "/")
    return f"{stem}/__init__.py", f"{stem}.py"


def load(name: str, read: Read) -> Policy:
    """The policy `module:attribute`; nothing after the colon: the module itself. A class is instantiated.

    Raises:
        PolicyFailure: it cannot be imported or made, or lacks one of the three functions.
    """
    module_name, _, attribute = name.partition(":")
    finder = _Finder(read)
    for loaded in [one for one, module in list(sys.modules.items()) if _is_own_module(module)]:
        del sys.modules[loaded]  # of another policy, or of this one before it was changed
    sys.meta_path.insert(0, finder)
    try:
        found = _get(module_name, attribute)
        policy = limited(found) if isinstance(found, type) else found
    except PolicyFailure:
        raise
    except BaseException as error:
        raise PolicyFailure(broken("import", error, is_own_frame)) from error
    finally:
        sys.meta_path.remove(finder)
    missing = [function for function in FUNCTIONS if not callable(getattr(policy, function, None))]
    if missing:
        raise PolicyFailure(f"{attribute or module_name} has no function {' or '.join(missing)}")
    return cast("Policy", policy)


def is_own_frame(names: Mapping[str, Any]) -> bool:
    """Whether a frame with these globals runs a module of the user's."""
    return isinstance(names.get("__loader__"), _Finder)


def _get(module_name: str, attribute: str) -> Any:
    module = limited(importlib.import_module, module_name)
    if not _is_own_module(module):
        raise PolicyFailure(f"{module_name} is a module of Python's or of the testbed's: rename yours")
    if not attribute:
        return module
    if not hasattr(module, attribute):
        if hasattr(module, "__path__") and _has(f"{module_name}.{attribute}"):
            return limited(importlib.import_module, f"{module_name}.{attribute}")
        raise PolicyFailure(f"{module_name} has no attribute {attribute}")
    return getattr(module, attribute)


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _is_own_module(module: types.ModuleType | None) -> bool:
    return isinstance(getattr(module, "__loader__", None), _Finder)


class _Finder(InspectLoader, MetaPathFinder):
    """Imports modules from their texts; tracebacks have their paths below the user's directory."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module is, if it is the user's."""
        del path, target
        if fullname.partition(".")[0] in TAKEN:
            return None
        for file in files_of(fullname):
            if self._read(file) is not None:
                return ModuleSpec(fullname, self, origin=file, is_package=file.endswith("/__init__.py"))
        return None

    def get_source(self, fullname: str) -> str | None:
        """The text of a module."""
        return next((text for file in files_of(fullname) if (text := self._read(file)) is not None), None)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run its text."""
        assert module.__spec__ is not None
        assert module.__spec__.origin is not None
        text = self._read(module.__spec__.origin)
        assert text is not None
        exec(compile(text, module.__spec__.origin, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - it is what was asked for
