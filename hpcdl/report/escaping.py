"""Escaping of a trace's texts: names, questions and versions come from files of unknown origin."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_BLOCK: Final = re.compile(
    r"^(\d*)((?<=\d)[.)](?=\s|$)|(?<!\d)(?:(?:#{1,6}|[-+*])(?=\s|$)|[>|\[]|`{3}|~{3}|([-*_=])\3\3))"
)
"""Beginnings of a line that a backslash keeps from being a heading, list, quotation, table or fence."""

MAX_MESSAGE: Final = 2000
"""Characters of an error message, at most."""


def visible(text: str) -> str:
    r"""Return ``text`` with each control or formatting character as its escape, such as ``\x1b`` or ``\n``.

    A terminal obeys some of them, line ends would begin lines of their own, and others reverse the order of
    letters.
    """
    if text.isprintable():
        return text
    return "".join(one if _shown(one) else one.encode("unicode_escape").decode() for one in text)


def message(error: object) -> str:
    """Return the text of an error as one line for a terminal, without its middle if it is very long."""
    text = visible(str(error))
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE // 2]} ... {text[-MAX_MESSAGE // 4 :]}"


def _shown(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def markdown(text: str) -> str:
    """Return a line of text for Markdown in which it is text: no HTML, no links, no images, no blocks."""
    return _BLOCK.sub(r"\1\\\2", _inline(text), count=1)


def markdown_cell(text: str) -> str:
    r"""Return text for a cell of a table; a pipe is ``\|``, and backslashes before it are doubled."""
    return re.sub(r"(\\*)\|", r"\1\1\\|", _inline(text))


def _inline(text: str) -> str:
    return text.replace("<", "&lt;").replace("](", "]\\(")


def fenced(text: str, language: str) -> str:
    """Return text as a code block; its fence is longer than any row of backticks inside."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = (visible(line.replace("\t", "    ")) for line in text.rstrip("\n").split("\n"))
    return "\n".join([f"{fence}{language}", *lines, fence])
