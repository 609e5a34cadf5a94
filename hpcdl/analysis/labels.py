"""Names with settings as names of cases and records hold them, ``tree(arity=4)``: written, and taken apart."""

from __future__ import annotations

from typing import Any


def label(value: Any) -> str:
    """Return how a value is written in names and tables: ``ring``, ``tree(arity=4)``, ``0.1``."""
    if not isinstance(value, dict):
        return str(value)
    inside = ",".join(f"{key}={label(one)}" for key, one in value.items() if key != "name")
    name = str(value.get("name", ""))
    return f"{name}({inside})" if inside else name


def parts(label: str) -> tuple[str, dict[str, str]]:
    """Return the name and the text of each setting; a setting may be a name with settings itself.

    Text of another form is a name without settings.
    """
    name, opened, inside = label.partition("(")
    if not opened or not inside.endswith(")"):
        return label, {}
    settings = [one.partition("=") for one in _split(inside[:-1])]
    if not all(equals for _, equals, _ in settings):
        return label, {}
    return name, {key.strip(): value for key, _, value in settings}


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return found
