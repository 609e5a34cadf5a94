"""Layers, one per file: structure, shapes and parameters, no arithmetic."""
