"""Sections of a report: each is a ``Declaration``, a constant of a file here."""
