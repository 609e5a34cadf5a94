"""Layers split among the ranks of a model group; alike kinds of layers in one file."""
