"""The page in a browser: headless Chromium."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from contract.archives import archive
from contract.archives import run as night
from report_runs import HOSTILE, all_figures

from hpcdl import read
from hpcdl.analysis.over_time.pairing import Change
from hpcdl.analysis.over_time.regressions import REGRESSED, Comparison
from hpcdl.report.comparison import page as comparison_page
from hpcdl.report.formats.document import Document, Section
from hpcdl.report.formats.html import written
from hpcdl.report.formats.tables import Table
from hpcdl.report.history import page
from hpcdl.report.render import render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--allow-file-access-from-files", "--virtual-time-budget=5000", "--window-size=1400,900"),
    "--hide-scrollbars",
)
MEASURE = """<!DOCTYPE html><title>measure</title><body><script>
const found = [];
const widths = [320, 390, 1280];
function next() {
  if (!widths.length) { document.body.textContent = JSON.stringify(found); return; }
  const frame = document.createElement("iframe");
  frame.style.width = widths.shift() + "px";
  frame.style.border = "0";
  frame.src = "page.html";
  frame.onload = () => {
    const page = frame.contentDocument, root = page.documentElement;
    const fetched = frame.contentWindow.performance.getEntriesByType("resource").map(one => one.name);
    const boxes = [...page.querySelectorAll("svg.chart")].map(one => one.getBoundingClientRect());
    found.push({
      width: root.clientWidth, content: root.scrollWidth, body: page.body.scrollWidth,
      fetched: fetched.filter(one => !one.startsWith("data:")),
      outside: boxes.filter(one => one.left < 0 || one.right > root.clientWidth || one.height < 50).length,
      charts: boxes.length,
      hidden: [...page.querySelectorAll("th.k")].filter(one => {
        const key = one.getBoundingClientRect(), table = one.closest(".scroll").getBoundingClientRect();
        return key.left < table.left || key.right > table.right + 1;
      }).length,
      covered: [...page.querySelectorAll("tr")].filter(row => {
        const cells = [...row.children].map(one => one.getBoundingClientRect()).sort((one, other) => one.left - other.left);
        return cells.some((cell, number) => number && cell.left < cells[number - 1].right - 1);
      }).length,
      spilled: [...page.querySelectorAll("th, td")].filter(one => one.scrollWidth > one.clientWidth + 1).length,
      scrolling: [...page.querySelectorAll(".scroll")].filter(one =>
        one.querySelectorAll("tbody tr").length < 30 && one.scrollHeight > one.clientHeight + 1).length,
      backticks: [...page.querySelectorAll("p, li, td, th, h1")].filter(one => /`[^`]+`/.test(one.textContent)).length,
      warnings: [...page.querySelectorAll(".state a")].map(one =>
        one.textContent + " -> " + page.querySelector(one.hash + " h2").textContent),
      keys: page.querySelectorAll("th.k").length,
    });
    frame.remove();
    next();
  };
  document.body.append(frame);
}
next();
</script>"""

DATA = Path(__file__).resolve().parents[2] / "reports" / "data"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]


LONG = "a_long_name_of_a_model" * 8


def report(hand, name):
    return render([all_figures(hand, name)], "html")


def history(_, name):
    return written([page(archive(12, 30, [(3, 20, 1.3), (4, 25, 0.8)], name=name), whole=True)])


def comparison(_, name):
    numbers = {"baseline": 1.0, "candidate": 1.2, "ratio": 1.2, "low": 1.1, "high": 1.3}
    changes = [Change("s", f"{name} {row}", "step_seconds", ([], []), REGRESSED, **numbers) for row in range(50)]
    sides = ([night(0, [])],) * 2
    return written([comparison_page(Comparison(changes, "launch", (1, 1), 0.0, 0.03, [], [], sides=sides))])


def wide(_, name):
    """Tables of two settings with twenty columns, three of which answer."""
    header = ("method", *(f"column {number}" for number in range(16)), "error", "error 95 %", "verdict")
    cells = ("12.34 ms", "1.20 to 3.40 ms") * 8
    rows = [(f"{name}(row={row},width=2)", *cells, "3.2 %", "1.0 to 4.0 %", row) for row in ("yes", "no")]
    table = Table("A: measured", header, rows, details=header[8:17], answers=header[17:])
    tables = [table, replace(table, title="B: simulated")]
    section = Section("Wide", ["An answer."], tables=tables, per="setting")
    return written([Document("wide", [section, section])])


def kept(_, name):
    """A report of a suite with many methods and settings, of the records that the repository has."""
    return render([read(DATA / f"{name}.json.xz")], "html")


PAGES = [
    *((form, LONG + HOSTILE, charts) for form, charts in ((report, 9), (history, 2), (comparison, 1))),
    (wide, LONG, 0),
    (kept, "near-linear", 5),
    (kept, "memory", 3),
]


@pytest.mark.parametrize(
    ("form", "name", "charts"), PAGES, ids=lambda one: getattr(one, "__name__", str(one)[:16])
)
def test_nothing_overflows_or_covers_another_and_the_answer_is_in_sight(hand, tmp_path, form, name, charts):
    """Nor do long and hostile names change that; the number of warnings leads to them."""
    (tmp_path / "page.html").write_text(form(hand, name), encoding="utf-8")
    (measure := tmp_path / "measure.html").write_text(MEASURE, encoding="utf-8")
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", measure.as_uri()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    body = re.search(r"<body>(.*)</body>", ended.stdout, re.DOTALL)
    assert body, ended.stderr
    measured = json.loads(html.unescape(body[1]))
    assert [one["width"] for one in measured] == [320, 390, 1280]
    for one in measured:
        assert one["covered"] == one["spilled"] == one["scrolling"] == one["backticks"] == 0
        assert one["content"] == one["width"]
        assert one["body"] <= one["width"]
        assert one["charts"] >= charts
        assert one["outside"] == 0
        assert one["keys"] > one["hidden"] == 0
        assert one["fetched"] == []
        assert name != "near-linear" or one["warnings"] == ["4 warnings -> Warnings"]
