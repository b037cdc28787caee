"""What a cluster's hardware takes: a profile that everybody has, by its name, or one from a file."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from annotated_types import MinLen
from pydantic import AfterValidator, Discriminator, Strict, Tag

from testbed.scenario.quantities import Section, only_tag

SUFFIXES: Final = (".parquet", ".csv")


class ProfileFile(Section):
    """A file of measured times, by its path from the scenario's directory.

    `extrapolate`: outside the measured range the nearest two points say how it goes on.
    """

    file: Annotated[str, MinLen(1)]
    extrapolate: Annotated[bool, Strict()] = False

    @property
    def key(self) -> str:
        """Its name in the run: unlike that of any other profile, and of this one not extrapolated."""
        path = self.file if _is_path(self.file) else f"./{self.file}"
        return f"{path} (extrapolated)" if self.extrapolate else path


def _is_path(text: str) -> bool:
    return "/" in text or text.endswith(SUFFIXES)


def _form(value: Any) -> str | None:
    if isinstance(value, dict):
        return only_tag(value, ("file",))
    return "<file>" if isinstance(value, ProfileFile) else "<name>"


def _named(text: str) -> str | ProfileFile:
    """What looks like a path is one."""
    return ProfileFile(file=text) if _is_path(text) else text


Profile: TypeAlias = Annotated[
    Annotated[str, MinLen(1), AfterValidator(_named), Tag("<name>")] | Annotated[ProfileFile, Tag("<file>")],
    Discriminator(
        _form,
        custom_error_type="refused",
        custom_error_message="a profile of no known kind",
        custom_error_context={"allowed": "a name, the path of a file, or a mapping with the key file"},
    ),
]


def profile_key(profile: str | ProfileFile) -> str:
    """The name of a profile in the run."""
    return profile.key if isinstance(profile, ProfileFile) else profile
