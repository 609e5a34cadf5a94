"""Report files beside a run, with the libraries of the page and without."""

import pytest

from hpcdl.report import render as pages
from hpcdl.report.render import render


@pytest.fixture
def no_jinja(monkeypatch):
    monkeypatch.setattr(pages, "find_spec", lambda name: None if name == "jinja2" else object())


def test_the_page_is_the_one_to_open(tmp_path):
    assert pages.formats() == ["md", "html"]
    assert pages.save(tmp_path, ["text", "page"]) == str(tmp_path / "report.html")
    assert [(tmp_path / name).read_text() for name in ("report.md", "report.html")] == ["text", "page"]


def test_without_its_libraries_the_page_is_left_out_and_one_line_says_why(tmp_path, no_jinja):
    (tmp_path / "report.html").write_text("an earlier one")
    assert pages.formats() == ["md"]
    line = pages.save(tmp_path, ["text"])
    assert (
        line == f"{tmp_path / 'report.md'} (no report.html: Jinja2 is not installed: pip install 'hpcdl[report]')"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_a_page_that_is_asked_for_needs_its_libraries(hand, no_jinja):
    with pytest.raises(ValueError, match=r"^Jinja2 is not installed: pip install 'hpcdl\[report\]'$"):
        render([hand.train([[5.0] * 9]).read()], "html")
