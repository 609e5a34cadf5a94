"""Formats of other tools' logs, one a file; a new file needs no registration.

A file declares its ``FORMAT`` (:class:`hpcdl.trace.log.Format`): the tool, a pattern of the lines that only its
logs have, and a function from the lines of a log to a :class:`hpcdl.trace.log.Log`. ``log.py`` makes a run of it.

- A size is that of the whole vector, as hpcdl counts it, or the log says ``of_parts``.
- A time is in seconds; what it is, mean or repetition, of which ranks, the log says in words.
- What a log does not state is left out, or asked for by ``stated`` of ``log_facts.py``.
- A wrong line raises its ``error``, which has its number.
"""
