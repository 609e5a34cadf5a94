"""Commands of ``hpcdl``. One command, one file of its name; a new file is found.

In come options. Out come text on the terminal, files, and an exit code of :mod:`hpcdl.exit_codes`. A file has
two functions and a declaration::

    def arguments(parser): ...          options by their usage: parser.option("-n --ranks RANKS", "ranks to start")
    def execute(options) -> int: ...    the work; returns the exit code

    COMMAND = Command(order, summary, description, example)

:mod:`hpcdl.cli` collects the declarations, parses the command line, and prints an error as one line:
``UsageError`` for an option or a suite that cannot be, ``TraceError`` for a damaged file; both are exit code 2.

The one rule: a file imports only :mod:`hpcdl.commands.parts` and light modules at its top, and all else in its
functions. Every rank of a job starts at this command line, and ``hpcdl --help`` imports all commands.

Open ``testbed.py`` first, which is short and complete. ``parts/`` has what several commands share.
"""
