"""Generated test parameters: a few fixed ones and some chosen by hypothesis, equal in every run."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

RANKS = st.one_of(st.integers(1, 17), st.sampled_from([31, 32, 33]))
"""Powers of two and their neighbours, primes and composite numbers."""


def generated(examples, *fixed, **strategies):
    """Decorate a test to run with the ``fixed`` keyword arguments and with so many generated ``examples``."""

    def decorate(test):
        test = given(**strategies)(test)
        for arguments in reversed(fixed):
            test = example(**arguments)(test)
        return settings(max_examples=examples, derandomize=True, deadline=None, database=None)(test)

    return decorate


on_any_ranks = generated(2, *({"ranks": ranks} for ranks in (1, 3, 8, 17)), ranks=RANKS)
"""Decorate a test to run on 1, 3, 8, 17 and some other numbers of ``ranks``."""
