"""Formats: how a document is written.

In comes a :class:`hpcdl.report.formats.document.Document`: a title, the verdicts that head the page, and
sections of paragraphs, points, charts and tables of finished text. Out comes a text: HTML, Markdown, LaTeX, a
terminal's, or SVG of a figure; and for other programs CSV, JSON, JUnit XML and OpenMetrics.

The one rule: a format knows documents, and no run. Runs, comparisons, histories and claims make documents
(``report/contents.py``, ``report/comparison.py``, ...), so that all pages have one layout::

    verdicts -> headed() -> Document -> html.written       page.html and style.css in report/page
                                     -> writers.markdown, writers.latex
                                     -> writers.plain      columns as wide as the terminal
    rows, test cases, gauges         -> writers.csv_text, junit, openmetrics

Text of a trace may be hostile: each writer escapes what its format would obey, and control characters are shown as
escapes (``cells.visible``). Open ``document.py`` first and ``tables.py``, then the format that you need.
"""
