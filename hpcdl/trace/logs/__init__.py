"""Formats of other tools' logs, one a file; a new file needs no registration.

A file declares its ``TOOL``, a pattern ``MARK`` of the lines that only its logs have, and ``read(path, lines)``,
which returns a :class:`hpcdl.trace.log.Log`. ``log.py`` makes a run of it.

- A size is that of the whole vector; ``of_parts``: of allgathers and all-to-alls that of a rank's part.
- A time is in seconds: the mean, or that of each repetition; ``times`` says in words what it is.
- A date is in ISO 8601, as of UTC; there is a host for each rank.
- What a log does not state is left out, or 0: a user may state it (``--log``).
- A wrong line raises its ``error``, which has its number.
"""
