"""Schedules of virtual ranks for the tests of strategies, and the number of ranks in each."""

SCHEDULES = range(125)


def ranks_in(schedule):
    """Return 2 to 8 ranks, and 9 to 16 in every eleventh schedule, whose time grows with the square of its ranks.

    7, 11 and 31 have no factor 2, 3 or 5, so that settings chosen by such remainders occur with all numbers of ranks.
    """
    return 9 + schedule // 31 % 8 if schedule % 11 == 0 else 2 + schedule % 7
