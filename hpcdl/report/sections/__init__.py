"""Sections of a report. One subject, one file; a section is a ``Declaration``, a constant of its file.

In comes a :class:`hpcdl.report.run.findings.Findings`: records, decisions, links and more of one run. Out come
sections of finished text, and one sentence for the verdict. A ``Declaration`` is data: a place on the page, and
one function for each form of the report::

    SECTION = Declaration(order, page, short=..., rows=..., answer=..., figures=[...])

    page(findings)     -> Section  all tables, the rows that matter most first      HTML, LaTeX
    short(findings)    -> Section  without it: the first rows of ``page``           Markdown
    answer(findings)   -> Answer   one sentence, and details                        verdict; its table: terminal
    figures            -> charts   before the tables                                HTML, SVG

Nothing lists sections. ``report/contents.py`` takes every ``Declaration`` of every file here, in their
order. A suite's ``answer`` names declarations, without a name of their own by their files: their sentences head
the report.

The one rule: a section that does not apply to a run returns a ``Section`` without content, and None instead of
an answer. So no caller asks what kind of run it is, and no page has an empty heading.

Open ``batches.py`` first, a table that answers; then ``scaling.py`` for all forms.
"""
