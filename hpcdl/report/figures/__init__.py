"""Figures of a report: one figure, one file; the declaration of a section names its figures."""
