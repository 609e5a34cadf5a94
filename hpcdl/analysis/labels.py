"""Names with settings as records hold them, ``tree(arity=4)``, taken apart."""

from __future__ import annotations


def parts(label: str) -> tuple[str, dict[str, str]]:
    """The name and its settings, each as it is written; settings may be names with settings themselves.

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
    """At the commas that no bracket holds."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return found
