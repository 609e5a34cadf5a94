"""A figure as a separate file: SVG with its title, legend and note, for light and dark."""

from __future__ import annotations

import re
import textwrap
from html import escape
from typing import TYPE_CHECKING, Final

from hpcdl.report.drawing.palette import DARK, LIGHT, Theme
from hpcdl.report.escaping import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.report.drawing.figure import Entry, Figure

TOP: Final = 24
"""Height of the title."""
ROW: Final = 14
"""Height of a row of the legend or note."""
KEY: Final = 34
"""Width of a legend's sample, and a space."""
LETTER: Final = 5.0
"""Width of a letter, at least the mean one."""
LINE: Final = 84
"""Letters of a line of the note."""
STYLE: Final = (
    ":root{%s}@media(prefers-color-scheme:dark){:root{%s}}svg{color:var(--ink)}text{fill:var(--ink)}"
    ".m{fill:var(--muted)}.key{fill:none;stroke-width:1.8}"
)


def standalone(made: Figure, title: str, note: str) -> str:
    """Return an SVG document; its colours follow the reader's theme."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', made.svg)
    if found is None:
        raise ValueError("a drawing without its size")
    width, height = map(float, found.groups())
    legend, below = _legend(made.legend, width, TOP + height + 6)
    below += 4
    lines = textwrap.wrap(visible(note), LINE)
    words = [
        f'<text class="m" x="6" y="{below + ROW * number + 8:g}" font-size="7.5">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    total = below + ROW * len(lines) + 4
    chart = made.svg.replace('<svg class="chart"', f'<svg y="{TOP}" width="{width:g}" height="{height:g}"', 1)
    style = STYLE % tuple(map(_variables, (LIGHT, DARK)))
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(visible(title))}" '
            f'viewBox="0 0 {width:g} {total:g}" font-family="system-ui, sans-serif">'
        ),
        f"<style>{style}</style>",
        f'<rect width="{width:g}" height="{total:g}" style="fill:var(--paper)"/>',
        f'<text x="6" y="15" font-size="11" font-weight="600">{escape(visible(title))}</text>',
        chart,
        *legend,
        *words,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _variables(theme: Theme) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in theme.variables().items())


def _legend(entries: Sequence[Entry], width: float, top: float) -> tuple[list[str], float]:
    """Return the legend in columns of equal width, and the place below it."""
    names = [visible(one.name) for one in entries]
    longest = max(map(len, names), default=0)
    columns = max(1, int(width // (KEY + LETTER * longest + 10)))
    found = []
    for number, (one, name) in enumerate(zip(entries, names, strict=True)):
        x, y = 6 + number % columns * width / columns, top + number // columns * ROW
        line = f'<path d="M1 6H27" style="stroke:{one.colour};stroke-dasharray:{one.dashes}"/>'
        mark = f'<path d="{one.shape}" style="fill:{one.colour}"/>' if one.shape else ""
        sample = (line if one.dashes != "none" else "") + mark
        text = f'<text x="{KEY}" y="9" font-size="8.5">{escape(name)}</text>'
        found.append(f'<g transform="translate({x:g},{y:g})"><g class="key">{sample}</g>{text}</g>')
    return found, top + -(-len(entries) // columns) * ROW
