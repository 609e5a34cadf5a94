"""From numbers to pages.

In come records and findings of :mod:`hpcdl.analysis` and :mod:`hpcdl.prediction`. Out come pages, tables,
figures, JSON, and exit codes::

    one run          run/ computes findings, sections/ makes tables and answers --+
    two sets         comparison.py -----------------------------------------------+
    an archive       history.py --------------------------------------------------+--> Document --> formats/
    claims           claims.py ---------------------------------------------------+
    another machine  predictions.py ----------------------------------------------+

``formats/`` writes documents as HTML, Markdown, LaTeX, text, CSV and JSON and knows no run; its ``verdicts.py``
and ``sentences.toml`` have the sentences that judge. ``published_results.py`` has figures of papers beside ours,
``link_counters.py`` what grew on links.

The one rule: a verdict is made once, as an object, and terminal, page, JSON, JUnit and exit code follow from it.
Reports begin with the suite's question and its answer; evidence comes after. Open ``formats/verdicts.py``
first, then ``run/contents.py``. ``README.md`` describes the columns of ``--json``.
"""
