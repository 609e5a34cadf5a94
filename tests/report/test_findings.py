"""Each reduction of a run is computed once, whatever the number of sections and formats."""

from dataclasses import replace

from hpcdl.cli import main
from hpcdl.report import contents
from hpcdl.report.formats import figure
from hpcdl.report.render import FORMATS, renderings
from hpcdl.report.run import findings

REDUCTIONS = ("launches", "records", "problems", "settings", "warnings", "predict_run")


def test_each_reduction_is_computed_once(hand, monkeypatch):
    calls = []

    def counted(name, original):
        return lambda *given: calls.append(name) or original(*given)

    for name in REDUCTIONS:
        monkeypatch.setattr(findings, name, counted(name, getattr(findings, name)))
    for ranks in (1, 2):
        hand.train([[40.0 / ranks] * 30] * ranks)
    renderings([hand.read()], list(FORMATS), findings.Reference(predict=True))
    assert sorted(calls) == sorted(REDUCTIONS)


def test_events_are_read_once_for_all_formats(hand, monkeypatch):
    hand.train([[20.0] * 30] * 2, events=[[(0, "send", 1, 2, 1 - rank, 8)] for rank in range(2)])
    run = hand.read()
    reads = []
    monkeypatch.setattr(type(run), "events_of", lambda *given: reads.append(given[1]) or run._events([given[1]]))
    renderings([run], ["markdown", "summary"])
    assert reads == [0]


def test_a_section_that_fails_is_named_and_all_others_are_written(hand, tmp_path, monkeypatch, capsys):
    """The command ends with 1."""
    for ranks in (1, 2):
        hand.train([[20.0] * 10] * ranks)
    hand.read()

    def fails(_findings):
        raise ZeroDivisionError("no steps")

    broken = {"answer": fails, "page": fails, "figures": (fails,)}
    known = [replace(one, **broken) if one.name == "scaling" else one for one in contents.declared()]
    monkeypatch.setattr(contents, "declared", lambda: known)
    assert main(["report", str(hand.folder), "-o", str(tmp_path / "page.html")]) == 1
    said, page = capsys.readouterr().err, (tmp_path / "page.html").read_text()
    for name in ("answer", "section", "figure"):
        assert f"report: {name} scaling: ZeroDivisionError: no steps" in said
        assert f"The {name} scaling could not be made: ZeroDivisionError: no steps." in page
    assert "Nothing failed" in page and "Command: " in page


def test_a_figure_that_cannot_be_drawn_is_named_and_all_others_are_drawn(hand, monkeypatch):
    for ranks in (1, 2):
        hand.train([[20.0] * 10] * ranks, compute=[15.0] * ranks)
    drawn = figure.figure

    def draw(chart, number):
        if chart.title.startswith("Efficiency"):
            raise ValueError("no ticks")
        return drawn(chart, number)

    monkeypatch.setattr(figure, "figure", draw)
    (page,), broken = renderings([hand.read()], ["html"])
    assert broken == ["report: figure Efficiency: ValueError: no ticks"]
    assert "The figure Efficiency could not be drawn: ValueError: no ticks." in page and "<svg" in page
