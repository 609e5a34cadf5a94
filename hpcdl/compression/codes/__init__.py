"""Codes of sequences of non-negative integers: one code, one file."""
