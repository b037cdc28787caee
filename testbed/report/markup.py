"""HTML and SVG as values: text is escaped by construction, markup is not escaped twice."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = frozenset({"br", "meta", "link", "hr", "img", "input"})


class Markup(str):
    """A string that is markup already."""

    __slots__ = ()


Child = str | Markup | None


def element(tag: str, *children: Child | Iterable[Child], **attributes: str | float | bool | None) -> Markup:
    """One element. Strings among the children are escaped, `Markup` is not, None is left out.

    Attribute names: `_` stands for `-`, a trailing `_` avoids a keyword (`class_`, `for_`). True writes a
    bare attribute, False and None leave it out.
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{joined(*children)}</{tag}>")


def joined(*children: Child | Iterable[Child]) -> Markup:
    """The children one after another."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(str(child))
        elif isinstance(child, str):
            parts.append(escape(child))
        else:
            parts.append(str(joined(*child)))
    return Markup("".join(parts))


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {written}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {written}="{escape(text, quote=True)}"'
