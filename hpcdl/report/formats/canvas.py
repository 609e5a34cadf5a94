"""A figure of matplotlib, and its SVG for a page: text stays text, colours are CSS variables."""

from __future__ import annotations

import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpcdl.report.formats.cells import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@contextmanager
def _without_settings_of_the_user() -> Iterator[None]:
    """Hide the user's settings of matplotlib while it is imported: variables, and a file in the current folder."""
    folder = os.open(".", os.O_PATH)
    variables = {name: os.environ.pop(name, None) for name in ("MPLBACKEND", "MATPLOTLIBRC")}
    try:
        os.chdir("/")
        os.environ["MATPLOTLIBRC"] = os.devnull
        yield
    finally:
        os.fchdir(folder)
        os.close(folder)
        del os.environ["MATPLOTLIBRC"]
        os.environ |= {name: value for name, value in variables.items() if value is not None}


logging.getLogger("matplotlib").setLevel(logging.ERROR)  # otherwise a home that is not writable is a warning
with _without_settings_of_the_user():
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib import ticker as ticker  # noqa: PLC0414 - for figure.py, which draws the marks of charts
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure


SERIES: Final = 8
"""Series with a colour of their own; further ones are thin lines without a name."""


class Theme(NamedTuple):
    """Colours of a theme, ``#rrggbb``."""

    paper: str
    panel: str
    ink: str
    muted: str
    grid: str
    link: str
    bad: str
    series: tuple[str, ...]

    def variables(self) -> dict[str, str]:
        """Return the CSS variables by name."""
        named = self._asdict()
        series = named.pop("series")
        return {**named, **{f"s{number}": colour for number, colour in enumerate(series)}}


LIGHT: Final = Theme(
    *("#ffffff", "#f5f7f9", "#1b1f24", "#56606b", "#d5dbe1", "#0a58a8", "#b3261e"),
    ("#0060a8", "#b84a00", "#00755a", "#a3427f", "#8a6100", "#2277ac", "#3c434b", "#6d6a00"),
)
DARK: Final = Theme(
    *("#11161c", "#1a2129", "#e7edf3", "#a3aeba", "#36404b", "#7db8f5", "#ff8a80"),
    ("#5fb0ee", "#ff8a4d", "#2fc79b", "#e29bc4", "#e8a91c", "#9cc4ff", "#c9d1d9", "#e9de5a"),
)

INK: Final = "#010101"
MUTED: Final = "#010102"
GRID: Final = "#010103"
PAPER: Final = "#010104"
COLOURS: Final = tuple(f"#0102{number:02x}" for number in range(SERIES))
"""Sentinel colours of series."""
VARIABLES: Final = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
    **{colour: f"var(--s{number})" for number, colour in enumerate(COLOURS)},
}
"""CSS of each sentinel."""

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "p")
"""matplotlib's names."""
DASHES: Final[tuple[tuple[float, ...], ...]] = (
    (),
    (6, 2),
    (2, 1.5),
    (6, 2, 2, 2),
    (9, 2),
    (4, 1, 1, 1, 1, 1),
    (1, 1),
    (9, 2, 2, 2),
)
"""In points; empty: a solid line."""


WIDTH: Final = 4.8
"""Inches of a figure; text of 9 points is legible on a phone, where the figure is as wide as the screen."""
MAX_LABEL: Final = 26
"""Characters of a label, at most."""
MAX_NAME: Final = 64
"""Characters of a name in a legend, at most."""
HALF: Final = 28
"""Characters of the longest name, at most, of a legend with two columns."""
LEGEND_ROW: Final = 0.19
"""Inches of a row of a legend."""
SETTINGS: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hpcdl",
    "font.size": 9,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.constrained_layout.use": True,
}


def drawn(draw: Callable[[Axes], None], height: float, number: int) -> str:
    """Return the drawing of ``draw`` as an SVG element; ``number`` makes its ids unique on a page."""
    with rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that its fonts lack; the browser has its own
        rcdefaults()
        rcParams.update(SETTINGS)
        figure = Figure(figsize=(WIDTH, height))
        FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        draw(axes)
        handles, names = axes.get_legend_handles_labels()
        if names:
            columns = 2 if max(map(len, names)) <= HALF else 1
            figure.set_figheight(height + LEGEND_ROW * -(-len(names) // columns))
            figure.legend(handles, names, loc="outside lower left", ncols=columns, frameon=False, fontsize=8.5)
        stream = io.StringIO()
        figure.savefig(
            stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return themed(stream.getvalue(), number)


def themed(svg: str, number: int) -> str:
    """Return matplotlib's SVG without its head, with CSS colours, rounded coordinates and unique ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg class="chart" role="img" viewBox="\1">', svg, count=1
    )
    used = {name: i for i, name in enumerate(dict.fromkeys(re.findall(r"(?:url\(|href=\")#([\w-]+)", svg)))}
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="([^"]+)"', lambda element: element[0] if element[1] in used else "", svg)
    svg = re.sub(
        r'(url\(#|href="#| id=")([\w-]+)', lambda place: f"{place[1]}f{number}-{used[place[2]]}", svg
    )  # matplotlib's ids depend on numpy's print options
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", _rounded, tag[0]), svg)
    for sentinel, css in VARIABLES.items():
        svg = svg.replace(sentinel, css)
    return re.sub(r">\s+<", "><", svg).strip()


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def label(text: str, most: int = MAX_LABEL) -> str:
    """Return text for a drawing: printable, and cut at ``most`` characters."""
    shown = visible(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
