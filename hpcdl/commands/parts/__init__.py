"""Shared parts of commands."""
