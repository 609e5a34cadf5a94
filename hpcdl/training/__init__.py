"""Training strategies: one strategy, one file.

A file's ``TRAITS`` declares the traits that differ from the defaults of
:class:`hpcdl.training.parts.traits.Strategy`.
"""
