"""Numbers of one run, and what sections make tables of them with.

In come runs as they were read. Out come findings, and declarations of sections over them::

    Run -- findings.py --> Findings -- report/contents.py --> Document -- report/render.py --> HTML, LaTeX, ...
                              |    each Declaration of report/sections
                              +-----------------------> rows ----- report/render.py --> JSON, CSV, pandas

The one rule: each reduction of a run is computed once, at its first use, as a property of :class:`Findings`. All
sections and formats draw from it, so that a number is the same in the verdict, in a table and in JSON.

``grouping.py`` puts records into tables: problem, method, ranks, seed. ``operations.py`` does it for
collectives. ``names.py`` names rows, as briefly as the other rows of a table allow. ``warnings.py``
states doubts about the numbers; ``badges`` in ``declaration.py`` the launches and seeds behind an answer.
``views.py`` compares cases that differ in one key. ``link_counters.py`` tells what grew on links.
``predicted_answers.py`` and ``published_results.py`` speak of times of a model, and of figures of papers.

Open ``findings.py`` first, then ``declaration.py``, which has :class:`Declaration`, columns and curves.
"""
