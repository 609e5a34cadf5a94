"""Colours, markers and dashes of series: distinct without colour too.

Hues are those of Okabe and Ito (Color Universal Design, 2008), which colour-blind readers tell apart, and
darker on white. A chart is drawn in sentinel colours; in the page each becomes a CSS variable, which a light and a
dark theme set.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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
SHAPES: Final = (
    "M14 2.6a3.4 3.4 0 1 0 .01 0z",
    "M11 3h6v6h-6z",
    "M14 2l4 7.4h-8z",
    "M14 1.6l4.4 4.4-4.4 4.4-4.4-4.4z",
    "M14 10l4-7.4h-8z",
    "M12.5 2h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5z",
    "M12 2l2 2 2-2 2 2-2 2 2 2-2 2-2-2-2 2-2-2 2-2-2-2z",
    "M14 2l4 3-1.5 4.6h-5l-1.5-4.6z",
)
"""Markers as SVG paths, 28 x 12."""
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
