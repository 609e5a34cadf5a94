"""Report files beside a run, with the libraries of the page and without."""

import re

import pytest

from hpcdl.report import render as pages
from hpcdl.report.render import render


def test_the_page_is_the_one_to_open(tmp_path):
    assert pages.formats() == ["md", "html"]
    assert pages.save(tmp_path, ["text", "page"]) == str(tmp_path / "report.html")
    assert [(tmp_path / name).read_text() for name in ("report.md", "report.html")] == ["text", "page"]


def test_without_its_libraries_the_page_is_left_out_and_one_line_says_why(tmp_path, hand, monkeypatch):
    """A page that is asked for is refused."""
    monkeypatch.setattr(pages, "find_spec", lambda name: None if name == "jinja2" else object())
    (folder := tmp_path / "run").mkdir()
    (folder / "report.html").write_text("an earlier one")
    assert pages.formats() == ["md"]
    why = "Jinja2 is not installed: pip install 'hpcdl[report]'"
    assert pages.save(folder, ["text"]) == f"{folder / 'report.md'} (no report.html: {why})"
    assert [path.name for path in folder.iterdir()] == ["report.md"]
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        render([hand.train([[5.0] * 9]).read()], "html")
