"""Measurements beside a case."""
