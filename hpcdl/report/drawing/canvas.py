"""A figure of matplotlib, and its SVG for a page: text stays text, colours are CSS variables."""

from __future__ import annotations

import io
import re
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from hpcdl.report.drawing.palette import GRID, INK, MUTED, VARIABLES
from hpcdl.report.escaping import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes

WIDTH: Final = 4.8
"""Inches of a figure; text of 9 points is legible on a phone, where the figure is as wide as the screen."""
LONGEST: Final = 26
"""Characters of a label, at most."""
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
    with _settings():
        figure = Figure(figsize=(WIDTH, height))
        FigureCanvasSVG(figure)
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        draw(axes)
        stream = io.StringIO()
        figure.savefig(
            stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return themed(stream.getvalue(), number)


@contextmanager
def _settings() -> Iterator[None]:
    with rc_context(SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that its fonts lack; the browser has its own
        yield


def themed(svg: str, number: int) -> str:
    """Return matplotlib's SVG without its head, with CSS colours, rounded coordinates and unique ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg class="chart" role="img" viewBox="\1">', svg, count=1
    )
    used = set(re.findall(r"(?:url\(|href=\")#([\w-]+)", svg))
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="([^"]+)"', lambda one: one[0] if one[1] in used else "", svg)
    svg = re.sub(r'(url\(#|href="#| id=")(?=[\w-])', rf"\1f{number}-", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", _rounded, tag[0]), svg)
    for sentinel, css in VARIABLES.items():
        svg = svg.replace(sentinel, css)
    return re.sub(r">\s+<", "><", svg).strip()


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def label(text: str) -> str:
    """Return text for a drawing: printable, and cut at :data:`LONGEST` characters."""
    shown = visible(text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
