"""Tables of hpcdl/docs, generated from what ``hpcdl list`` knows. ``python tests/suite/tables.py`` writes them again."""

import re
from pathlib import Path

from hpcdl.commands.list import catalogue

DOCS = Path(__file__).parents[2] / "hpcdl/docs"
LONGEST = 30
"""Characters of a formula that fits into a column."""


def cells(subject, entry):
    """Return the cells of one row, by column."""
    row = {"name": f"`{entry['name']}`"}
    if subject == "models":
        row |= {"input": "", "parameters": "", "GMAC": ""}
    if "parameters" in entry:
        row |= {
            "input": "x".join(map(str, entry["shape"])),
            "parameters": f"{entry['parameters']:,}",
            "GMAC": f"{entry['multiply_adds_per_image'] / 1e9:.4g}",
        }
    row["description"] = entry["summary"].replace("``", "`").removesuffix(" Any p.")
    if subject == "aggregation":
        formulas = [entry["costs"].get(f"{what}, busiest rank", "") for what in ("Messages", "Bytes")]
        row |= zip(
            ("messages", "bytes"),
            (f"`{text}`" if 0 < len(text) <= LONGEST else "" for text in formulas),
            strict=True,
        )
    return row


def table(subject):
    """Return the Markdown table of a subject of ``hpcdl list``."""
    rows = [cells(subject, entry) for entry in catalogue(subject)]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_tables(text):
    """Return a page with the tables that its markers ask for."""
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{table(found[2])}\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for page in DOCS.glob("*.md"):
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
