"""From numbers to pages.

``run/`` computes the findings of a run, ``sections/`` makes tables and answers of them, ``formats/`` writes
documents as HTML, Markdown, LaTeX, text, CSV and JSON and knows no run. ``comparison.py`` and ``history.py`` are
the pages of several runs. ``verdicts.py`` has every sentence that judges: a verdict is made once, as an object,
and terminal, page, JSON, JUnit and exit code follow from it. Reports begin with the suite's question and its
answer; evidence comes after.
"""
