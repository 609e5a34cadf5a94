"""Layers, one per file: structure, shapes and parameters without arithmetic."""
