"""Layers split among the ranks of a model group; one kind of layer per file."""
