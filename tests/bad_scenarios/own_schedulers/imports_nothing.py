"""Imports what is not there."""

import no_such_module_anywhere  # type: ignore[import-not-found] # noqa: F401


class Mine:
    """Never gets here."""
