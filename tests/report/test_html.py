"""The page: whole, self-contained, harmless whatever the trace holds, and legible."""

import html
import re

import numpy as np
import pytest
from contract.pages import Page
from matplotlib.figure import Figure

from hpcdl.report.contents import document
from hpcdl.report.formats import figure as lines
from hpcdl.report.formats.canvas import DARK, LIGHT
from hpcdl.report.formats.cells import whole
from hpcdl.report.formats.document import MAX_SERIES, Axis, Bars, HeatMap, Lines, Point, Series, caption
from hpcdl.report.render import render
from hpcdl.report.run.findings import findings


@pytest.fixture(scope="module")
def text(illustrated_run):
    return render([illustrated_run], "html")


def test_a_page_is_well_formed_and_needs_nothing_else(text):
    page = Page(text)
    assert not page.open
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.seen}
    for tag, attributes in page.seen:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,")), (tag, attributes)
    ids = [attributes["id"] for _, attributes in page.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"][1:] for tag, attributes in page.seen if tag == "a"}
    assert links
    assert links <= set(ids)


def test_every_figure_has_its_numbers(illustrated_run, text):
    (page,) = (document(found, charts=True) for found in findings([illustrated_run]))
    assert {type(chart) for section in page.sections for chart in section.charts} == {Bars, HeatMap, Lines}
    figures = re.findall(r"<figure.*?</figure>", text, flags=re.DOTALL)
    titles = [re.search("<figcaption>(.*?)<", one)[1] for one in figures]
    wanted = "Speedup, Where a step, Accuracy over training time, Accuracy over epochs, Time over ranks, Share of the link"
    for beginning in [*wanted.split(", "), "Links"]:
        assert any(title.startswith(beginning) for title in titles), (beginning, titles)
    for one in figures:
        assert one.count('<svg class="chart"') == 1
        assert "<details>" in one
        assert one.count("<td") > 1


def test_text_of_a_figure_is_text_and_its_colours_follow_the_theme(text):
    """Colours are literal, for viewers without variables; the page replaces each of them."""
    charts = re.findall(r'<svg class="chart".*?</svg>', text, flags=re.DOTALL)
    assert any(">ranks</text>" in one for one in charts)
    for one in charts:
        for paint, colour in set(re.findall(r"(fill|stroke): ([^;\"n]+)", one)):
            assert f'[style*="{paint}: {colour}"]{{{paint}:var(--' in text, (paint, colour)
        assert "font-family" not in one
        assert "<style" not in one


def test_the_first_line_answers(illustrated_run, text):
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", text)[1]
    verdict = render([illustrated_run], "md").partition("## Verdict")[2]
    assert verdict.strip().startswith(html.unescape(heading.replace("&nbsp;", " ")))
    badges = re.findall(r"<li>(.*?)</li>", text.partition('<ul class="badges"')[2].partition("</ul>")[0])
    assert f"\n{' | '.join(badges)}\n" in verdict
    assert "1 launch" in badges
    assert text.index("<h1") < text.index("Is it?") < text.index('<ul class="badges"')


def test_text_and_lines_stand_out():
    """By the contrast of WCAG 2.2, which is of relative luminances."""

    def luminance(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(one, other):
        dark, light = sorted(map(luminance, (one, other)))
        return (light + 0.05) / (dark + 0.05)

    for theme in [LIGHT, DARK]:
        for text in (theme.ink, theme.muted, theme.link, theme.bad):
            assert contrast(text, theme.paper) >= 4.5
            assert contrast(text, theme.panel) >= 4.5
        for line in theme.series:
            assert contrast(line, theme.paper) >= 3
        assert len(theme.series) >= MAX_SERIES


def test_every_point_is_drawn_at_its_value_and_within_the_axes():
    """Also of series with intervals, and where several have a point in common."""
    series = [
        Series("a", [Point(1, 2, 1, 3), Point(9, 8, 7, 20)]),
        Series("b", [Point(2, 2), Point(9, 8)]),
        Series("ideal", [Point(1, 1), Point(9, 9)], "reference"),
    ]
    axes = Figure().add_subplot()
    lines.draw_lines(Lines("", Axis("x"), Axis("y"), series), axes)
    pixels = {line.get_label(): line.get_transform().transform(line.get_xydata()) for line in axes.lines}
    for one in series:
        places = axes.transData.inverted().transform(pixels[one.name])
        assert places == pytest.approx(np.array([point[:2] for point in one.points]))
    (bars,) = axes.collections
    assert bars.get_transform() == axes.transData
    assert np.array(bars.get_segments()) == pytest.approx(np.array([[[1, 1], [1, 3]], [[9, 7], [9, 20]]]))
    assert axes.get_xlim() == pytest.approx((0.6, 9.4))
    assert axes.get_ylim() == pytest.approx((0.05, 20.95))


def test_lines_beyond_six_are_grey_and_named_in_the_note():
    series = [Series(f"m{n}", [Point(0, n), Point(1, n)]) for n in range(13)]
    chart = Lines("", Axis("x"), Axis("y"), series, "Bars.")
    axes = Figure().add_subplot()
    lines.draw_lines(chart, axes)
    assert axes.get_legend_handles_labels()[1] == [f"m{n}" for n in range(6)]
    assert len({line.get_color() for line in axes.lines[6:]}) == 1 and len(axes.lines) == 13
    assert caption(chart) == "Bars. Grey: m6; m7; m8; m9; 3 more."


def test_a_step_function_keeps_its_value_and_one_point_is_no_line():
    points = [Point(1, 0), Point(2, 0.5), Point(5, 1)]
    series = [Series("steps", points, steps=True), Series("nets", points[:1])]
    series.append(Series("a day", [Point(1, 0.3), Point(5, 0.3)], "reference"))
    axes = Figure().add_subplot()
    lines.draw_lines(Lines("", Axis("epochs", whole), Axis("y"), series), axes)
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    steps, nets, _ = axes.lines
    assert (steps.get_drawstyle(), steps.get_marker(), nets.get_linestyle()) == ("steps-post", "", "None")
    assert [text.get_text() for text in axes.texts] == ["a day"]
    assert axes.get_legend_handles_labels()[1] == ["steps", "nets"]
