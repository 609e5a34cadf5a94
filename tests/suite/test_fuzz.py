"""Any value of any key gives a case that can be recorded, or is refused in one line."""

import random

from hpcdl import suite


def test_any_damage_to_a_file(written):
    """Bytes are deleted, doubled or exchanged; the file is still a suite, or is refused in one line."""
    chance = random.Random(1)
    whole = written("collective", network="gemini", aggregation=["ring", {"name": "tree", "arity": 3}])
    refusals = set()
    for _ in range(1000):
        letters = list(whole)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(letters))
            letters[place] = chance.choice(["", letters[place] * 2, *'[]{}"=#.,\n1-\0'])
        try:
            suite.parse("".join(letters), "s.toml")
        except suite.UsageError as error:
            refusals.add(str(error))
    assert len(refusals) > 50
    assert not any("\n" in refusal for refusal in refusals)
