"""Contents of the report of one run: its numbers, its sections in their order, and its rows.

In come runs as they were read. Out comes a text in any format::

    Run -- findings.py --> Findings -- contents.py --> Document -- render.py --> HTML, LaTeX, Markdown, terminal
                              |    each Declaration of report/sections
                              +-----------------------> rows ----- render.py --> JSON, CSV, pandas

The one rule: each reduction of a run is computed once, at its first use, as a property of :class:`Findings`. All
sections and formats draw from it, so that a number is the same in the verdict, in a table and in JSON.

``grouping.py`` puts records into tables: problem, method, ranks, seed. ``operations.py`` does it for
collectives. ``method_names.py`` names rows, as briefly as the other rows of a table allow. ``warnings.py``
states doubts about the numbers; ``certainty`` in ``contents.py`` the launches and seeds behind a sentence.

Open ``findings.py`` first, then ``contents.py``, which has :class:`Declaration`.
"""
