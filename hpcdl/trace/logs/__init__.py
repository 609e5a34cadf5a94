"""Formats of other tools' logs, one a file; a new file needs no registration.

A file declares its ``TOOL``, a pattern ``MARK`` of the lines that only its logs have, and ``read(path, lines)``,
which returns a :class:`hpcdl.trace.log.Log`. A size is that of the whole vector, or the log says ``of_parts``;
what a log does not state is left out. A wrong line raises its ``error``, which has its number.
"""
