"""Rounds in which ranks exchange messages two by two."""

import random
from typing import Final

DEPARTS: Final = 1.1
"""Time of a pair or a host / the usual time, beyond which it departs and may be measured again."""


def rounds(ranks: int, pattern: str, matchings: int = 1) -> list[list[int | None]]:
    """Return the partner of each rank in each round; None for a rank that rests.

    ``pair``: ranks 0 and 1. ``bisection``: one round, rank r of the lower half with r of the upper one, so that
    every message crosses the middle. ``all_pairs``: every pair once, and no rank in two pairs of a round, by the
    circle method of round-robin tournaments (Kirkman 1847): p - 1 rounds, p if p is odd. ``random_pairs``: so many
    random perfect matchings, the same in each call; of an odd number one rank rests.
    """
    if pattern == "pair":
        return [[1, 0, *[None] * (ranks - 2)]]
    if pattern == "bisection":
        half = ranks // 2
        return [[(rank + half) % ranks for rank in range(ranks)]]
    if pattern == "random_pairs":
        draw = random.Random(ranks)
        return [_matching(draw.sample(range(ranks), ranks)) for _ in range(matchings)]
    seats = ranks + ranks % 2
    rounds = list[list[int | None]]()
    for turn in range(seats - 1):
        partners = [(turn - rank) % (seats - 1) for rank in range(seats)]
        # the last seat stays and meets the rank that would meet itself; the others move on around the table
        alone = turn * (seats // 2) % (seats - 1)
        partners[alone], partners[-1] = seats - 1, alone
        rounds.append([other if other < ranks else None for other in partners[:ranks]])
    return rounds


def _matching(order: list[int]) -> list[int | None]:
    partners: list[int | None] = [None] * len(order)
    for one, other in zip(order[::2], order[1::2], strict=False):
        partners[one], partners[other] = other, one
    return partners
