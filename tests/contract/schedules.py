"""A thousand schedules of every strategy, and how many ranks take part in each."""

SCHEDULES = range(1000)


def ranks_in(schedule):
    """2 to 8 ranks, and 9 to 16 in every eleventh: what a schedule takes grows with the square of its ranks.

    7 and 11 share no factor with 2, 3, 4 or 5, so settings that change with the remainders of those meet all numbers.
    """
    return 9 + schedule // 88 % 8 if schedule % 11 == 0 else 2 + schedule % 7
