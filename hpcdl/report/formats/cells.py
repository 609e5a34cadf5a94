"""Numbers as people read them: a sensible unit and three significant digits. A missing number is a dash."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hpcdl.exit_codes import visible

_BLOCK: Final = re.compile(
    r"^(\d*)((?<=\d)[.)](?=\s|$)|(?<!\d)(?:(?:#{1,6}|[-+*])(?=\s|$)|[>|\[]|`{3}|~{3}|([-*_=])\3\3))"
)
"""Beginnings of a line that a backslash keeps from being a heading, list, quotation, table or fence."""


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
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return "\n".join([f"{fence}{language}", visible_lines(text), fence])


def visible_lines(text: str) -> str:
    """Return a text of several lines without control characters other than their ends."""
    return "\n".join(visible(line.replace("\t", "    ")) for line in text.rstrip("\n").split("\n"))


_UNIT: Final = re.compile(
    r"(?<=\d) (?=(?:%|[num]?s|min|h|(?:[kKMGT]i?)?B(?:/s)?|[kMG]?bit(?:/s)?|[MGTP]?FLOP(?:/s)?)(?![\w/]))"
)


def unbroken(text: str) -> str:
    """Return text with a no-break space between each number and its unit."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


CHANCE: Final = "the difference may be chance"
"""Reason for which a comparison is not decided."""
Number = float | int | None

NONE = "-"


def digits(value: Number, significant: int = 3) -> str:
    """A pure number, without an exponent from 0.001 to a million: 0.953, 12.3, 1234."""
    if value is None or math.isnan(value):
        return NONE
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{significant - 1}e}"
    shown = f"{value:#.{significant}g}" if abs(value) < 10**significant else f"{value:.0f}"
    return shown.rstrip(".") if "e" not in shown else f"{value:.0f}"


def whole(value: Number) -> str:
    """A number of ranks, steps or epochs."""
    return NONE if value is None else f"{value:.4g}"


def seconds(value: Number) -> str:
    """A time: 850 ns, 12.3 us, 4.56 ms, 7.89 s, 12.3 min, 2.50 h."""
    if value is None or math.isnan(value):
        return NONE
    size = abs(value)
    if size < 59.95:
        for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
            if size < 999.5 * scale:
                return f"{digits(value / scale) if value else '0'} {unit if value else 's'}"
        return f"{digits(value)} s"
    return f"{digits(value / 60)} min" if size < 3597 else f"{digits(value / 3600)} h"


def percent(part: Number, whole: Number = 1) -> str:
    """A share: 0.2 %, 12.3 %; a dash when either is unknown."""
    return NONE if part is None or not whole or math.isnan(part / whole) else f"{100 * part / whole:.1f} %"


def volume(value: Number) -> str:
    """A number of bytes: 64 KiB when it is a whole number of them, 1.23 MB when not."""
    if value is None or math.isnan(value):
        return NONE
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale and value % scale == 0 and (value < 1024 * scale or unit == "GiB"):
            return f"{value // scale:.0f} {unit}"
    return f"{value:.0f} B" if value < 1000 else _decimal(value, "B")


def rate(value: Number) -> str:
    """Bytes per second: 1.23 GB/s (10^9)."""
    return NONE if value is None or math.isnan(value) else _decimal(value, "B/s")


FORMATS: Final = {"": digits, "s": seconds, "B": volume, "B/s": rate}
"""Text of a number by its unit."""


def interval(low: Number, high: Number, shown: Callable[[Number], str] = digits) -> str:
    """Two bounds: "0.941 to 0.962", "1.20 to 3.40 ms"; a dash when either is unknown, or not a number."""
    if low is None or high is None or math.isnan(low + high):
        return NONE
    first, last = shown(low), shown(high)
    number, _, unit = first.partition(" ")
    return f"{number if unit and last.endswith(f' {unit}') else first} to {last}"


def bounded(value: Number, low: Number, high: Number, shown: Callable[[Number], str] = digits) -> str:
    """A number with its interval: "1.71 (1.52 to 1.90)"; the number alone if its bounds are unknown or equal."""
    is_known = low is not None and high is not None and low < high and not math.isclose(low, high)
    return shown(value) + (f" ({interval(low, high, shown)})" if is_known else "")


def spread(values: Iterable[Number], shown: Callable[[Number], str] = digits) -> str:
    """Return the range of the known values, or the value if all look alike: "0.941 to 0.962"; a dash for none."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=None), max(known, default=None)
    return shown(low) if shown(low) == shown(high) else interval(low, high, shown)


def signed(ratio: Number) -> str:
    """A ratio of times as a change: +5.1 %, -20.0 %, x 12.0; a dash if it is not finite."""
    if ratio is None or not math.isfinite(ratio):
        return NONE
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %" if ratio < 10 else f"x {digits(ratio)}"


LONGER: Final = "longer", "less time", "as long"
HIGHER: Final = "higher", "lower", "as high"


def longer(
    ratio: float, low: float = math.nan, high: float = math.nan, words: tuple[str, str, str] = LONGER
) -> str:
    """A ratio of times in words: "5.1 % longer (4.0 to 6.2 %)", "2.0 % less time", "12.0 times as long".

    ``words``: :data:`LONGER`, or :data:`HIGHER` for rates. Bounds that look alike are left out.
    """
    more, less, equal = words
    sign = 1 if ratio >= 1 else -1
    size, ends = percent(sign * (ratio - 1)), sorted([sign * (low - 1), sign * (high - 1)])
    text, bounds = f"{size} {more if sign > 0 else less}", interval(ends[0], ends[1], percent)
    if ratio >= 10:
        text, bounds = f"{digits(ratio)} times {equal}", interval(low, high)
    elif size == "0.0 %":
        text = equal
    return f"{text} ({bounds})" if math.isfinite(low) and percent(low) != percent(high) else text


def plural(number: Number, noun: str, rest: str = "") -> str:
    """A number of things: "1 thread per rank", "2 threads per rank"; empty for None."""
    return "" if number is None else f"{number:g} {noun}{'' if number == 1 else 's'}{rest}"


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence lists them: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def sentence(text: str) -> str:
    """Return a text with a capital letter at its begin, and a full stop."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def _decimal(value: float, unit: str) -> str:
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * scale:
            return f"{digits(value / scale)} {prefix}{unit}"
    return f"{digits(value)} {unit}"
