"""The page of hpcdl history: figures with change points, numbers beneath, self-contained, bounded in size."""

import re

import numpy as np
import pytest
from contract.archives import archive
from contract.pages import Page

from hpcdl.report import history as figures
from hpcdl.report.history import render


@pytest.fixture(scope="module")
def found():
    return archive(12, 40, [(row, 36 - 3 * row, 1.3) for row in range(3)])


def test_a_page_is_well_formed_and_needs_nothing_else(found):
    text = render([found, found], {})
    page = Page(text)
    assert not page.open
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.seen}
    ids = [attributes["id"] for _, attributes in page.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.seen:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith("#"), (tag, attributes)


def test_a_changed_measure_has_a_figure_with_its_levels_and_numbers(found):
    first = next(one for one in figures.of_changed(found) if one.title == "allreduce 1 (p50)")
    times, level = first.series
    assert len(times.points) == 40
    assert level.role == "reference"
    before, *_, after = (point.y for point in level.points)
    assert after / before == pytest.approx(1.3, rel=0.03)
    assert "Slower since 2026-" in first.note
    assert len(first.table().rows) == 40 + len(level.points)
    text = render([found], {})
    figure = next(one for one in re.findall("<figure.*?</figure>", text, re.DOTALL) if first.title in one)
    assert figure.count("<tr>") == 1 + len(first.table().rows)


def test_measures_that_changed_come_first_and_each_measure_is_in_the_table(found):
    text = render([found], {})
    assert text.index("Measures that changed</h2>") < text.index("All measures</h2>")
    changed = {one.title for one in figures.of_changed(found)}
    assert changed >= {f"allreduce {row} (p50)" for row in (1, 2)}
    table = text[text.rindex("All measures</h2>") :]
    assert all(f"<td>allreduce {row} (p50)</td>" in table for row in range(12))


def test_levels_are_medians_between_changes():
    values = np.array([np.nan, 1.0, 3.0, 2.0, 9.0, np.nan, 7.0, 8.0])
    points = figures.levels_of(values, [3, 4], [float(x) for x in range(8)])
    assert [point[:2] for point in points] == [(1, 2.0), (3, 2.0), (3, 2.0), (4, 2.0), (4, 8.0), (7, 8.0)]
