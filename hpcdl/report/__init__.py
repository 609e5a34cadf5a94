"""From numbers to pages.

In come records and findings of :mod:`hpcdl.analysis` and :mod:`hpcdl.prediction`. Out come pages, tables,
figures, JSON, and exit codes::

    one run          run/ computes findings, sections/ make tables and answers, contents.py orders them --+
    two sets         comparison.py -----------------------------------------------------------------------+
    an archive       history.py --------------------------------------------------------------------------+
    claims           claims.py ---------------------------------------------------------------------------+
    another machine  sections/predictions.py -------------------------------------------------------------+
                                                                              formats/ <-- Document <-----+

``formats/`` writes documents as HTML, Markdown, LaTeX, text, CSV and JSON and knows no run; its ``verdicts.py``
and ``sentences.toml`` have the sentences that judge. ``render.py`` writes a run in any format. Files here import
``sections/``, these ``run/``, and this ``formats/``; never the other way.

The one rule: a verdict is made once, as an object, and terminal, page, JSON, JUnit and exit code follow from it.
Reports begin with the suite's question and its answer; evidence comes after. Open ``formats/verdicts.py``
first, then ``contents.py``. ``README.md`` describes the columns of ``--json``.
"""
