"""A drawing of matplotlib as SVG, PDF or PNG: text of an SVG stays text, and browsers draw it in their theme."""

from __future__ import annotations

import io
import logging
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpcdl.exit_codes import visible

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
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine


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

INK, MUTED, GRID, PAPER = LIGHT.ink, LIGHT.muted, LIGHT.grid, LIGHT.paper
COLOURS: Final = LIGHT.series


def theme_css() -> str:
    """Return CSS with which a browser draws the colours of the light theme as variables, which follow the theme.

    Other programs, such as rsvg-convert and Inkscape, skip ``@supports`` and draw the light theme. Markers are
    copies without ancestors, so that selectors name none.
    """
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in theme.variables().items()) for theme in (LIGHT, DARK)
    )
    rules = "".join(
        f'[style*="{paint}: {colour}"]{{{paint}:var(--{name})!important}}'
        for name, colour in LIGHT.variables().items()
        for paint in ("fill", "stroke")
    )
    variables = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"{variables}@supports(fill:var(--ink)){{{rules}}}"


WIDTH: Final = 4.8
"""Inches of a figure; text of 9 points is legible on a phone, where the figure is as wide as the screen."""
MAX_LABEL, MAX_NAME, HALF = 26, 64, 28
"""Characters, at most, of a label, of a name in a legend, and of one in a legend with two columns."""
LEGEND_ROW, TOP, ROW, EDGE = 0.19, 0.2, 0.15, 0.06
"""Inches of a row of a legend, of a line of the title, of a line of the note, and beside both."""
WIDE, LINE = 46, 84
"""Letters of a line of the title, and of the note."""
ORIGIN: Final = {
    "svg": ("Date", "Creator", "Format", "Type"),
    "pdf": ("CreationDate", "Creator", "Producer"),
    "png": ("Software",),
}
"""Metadata that files do not have: equal figures are equal files."""
SETTINGS: Final[Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
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
    "figure.facecolor": PAPER,
}


def drawn(draw: Callable[[Axes], None], height: float, form: str, title: str = "", note: str = "") -> bytes:
    """Return the drawing of ``draw`` as a file of a form: svg, pdf or png; ``height``: inches of its axes.

    With a title it stands for itself: title and note are part of it, on paper; otherwise a page has them.
    """
    with rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that its fonts lack; the browser has its own
        rcdefaults()
        rcParams.update(SETTINGS)
        layout = ConstrainedLayoutEngine()
        figure = Figure(figsize=(WIDTH, height), layout=layout)  # before a bar of colours, which needs it
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        draw(axes)
        handles, names = axes.get_legend_handles_labels()
        columns = 2 if max(map(len, names), default=0) <= HALF else 1
        headings, lines = textwrap.wrap(visible(title), WIDE), textwrap.wrap(visible(note), LINE) if title else []
        above, below = (EDGE + row * len(text) if text else 0.0 for row, text in ((TOP, headings), (ROW, lines)))
        legend = LEGEND_ROW * -(-len(names) // columns)
        total = height + legend + above + below
        figure.set_figheight(total)
        figure.patch.set_visible(bool(title))
        figure.text(0.02, 1 - EDGE / total, "\n".join(headings), va="top", fontsize=11, fontweight=600)
        figure.text(0.02, EDGE / total, "\n".join(lines), va="bottom", fontsize=7.5, color=MUTED, linespacing=1.4)
        layout.set(rect=(0, (below + legend) / total, 1, height / total))
        if names:
            options: dict[str, Any] = {"ncols": columns, "frameon": False, "fontsize": 8.5, "borderaxespad": 0.2}
            figure.legend(handles, names, loc="lower left", bbox_to_anchor=(0, below / total), **options)
        stream = io.BytesIO()
        figure.savefig(stream, format=form, dpi=200, metadata=dict.fromkeys(ORIGIN[form]))
    return stream.getvalue()


def themed(svg: str, number: int) -> str:
    """Return matplotlib's SVG without its head, with rounded coordinates and unique ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<svg [^>]*(viewBox="[^"]*")[^>]*>', r'<svg class="chart" role="img" \1>', svg, count=1)
    used = {name: i for i, name in enumerate(dict.fromkeys(re.findall(r"(?:url\(|href=\")#([\w-]+)", svg)))}
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="([^"]+)"', lambda element: element[0] if element[1] in used else "", svg)
    svg = re.sub(
        r'(url\(#|href="#| id=")([\w-]+)', lambda place: f"{place[1]}f{number}-{used[place[2]]}", svg
    )  # matplotlib's ids depend on numpy's print options
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", _rounded, tag[0]), svg)
    return re.sub(r">\s+<", "><", svg).strip()


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def label(text: str, most: int = MAX_LABEL) -> str:
    """Return text for a drawing: printable, and cut at ``most`` characters."""
    shown = visible(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
