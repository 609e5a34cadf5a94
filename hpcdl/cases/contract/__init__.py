"""Contracts that a scheme must fulfil."""
