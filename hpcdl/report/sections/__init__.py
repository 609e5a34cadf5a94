"""Sections of a report: one section, one file, which declares it as ``SECTION``."""
