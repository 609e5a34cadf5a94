"""The contrast: sides that differ in one key, by any measure, and what is said of their quotient."""

import pytest

from hpcdl import suite
from hpcdl.exit_codes import UsageError
from hpcdl.report.contents import check_answer
from hpcdl.report.run.findings import findings
from hpcdl.report.sections import contrast

from .conftest import steps


def answer(run):
    return contrast.answer(*findings([run]))


def suite_text(compare):
    return f"[suite]\nname = 's'\ncompare = {compare}\n"


SIDES = '{aggregation = ["ring", "tree"]}'


@pytest.mark.parametrize(
    "ring, tree, word, ends",
    [
        ([20, 20.2], [25, 25.1], "better", "times as fast as a tree for a step on 2 ranks."),
        ([25, 25.1], [20, 20.2], "worse", "times as long as a tree for a step on 2 ranks."),
        ([20, 24], [21, 26], "not distinguished", "for a step on 2 ranks: the difference may be chance."),
        ([20], [25], "one launch", "for a step on 2 ranks: not decided, as one launch decides nothing."),
    ],
)
def test_the_first_line_compares_the_two_sides(hand, ring, tree, word, ends):
    for scheme, times in (("ring", ring), ("tree", tree)):
        for launch, ms in enumerate(times):
            hand.train([steps(ms)] * 2, aggregation=scheme, launch=launch)
    run = hand.read(suite_text=suite_text(SIDES))
    headline = answer(run).headline
    assert headline.startswith("A ring ") and headline.endswith(ends)
    (pair,) = contrast.pairs(*findings([run]))
    assert pair.word == word


def test_jobs_and_slow_ranks_are_named_in_words(hand):
    """Neither side's ranks nor its pauses are repeated behind the quotient."""
    slow = {"straggler": "rank 1 4x slower", "settings": {"straggler": {"rank": 1, "factor": 4.0}}}

    def two_launches(ranks, ms, **fields):
        for launch in (0, 1):
            hand.train([steps(ms + launch / 10)] * ranks, launch=launch, global_batch=8, **fields)

    two_launches(2, 20)
    two_launches(4, 30)
    assert answer(hand.read(suite_text=suite_text("{ranks = [4, 2]}"))).headline == (
        "A job of 4 ranks takes 1.50 (1.48 to 1.52) times as long as a job of 2 ranks for a step."
    )
    two_launches(2, 30, **slow)
    run = hand.read(suite_text=suite_text('{straggler = [{rank = 1, factor = 4.0}, "none"]}'))
    headline = answer(run).headline
    assert headline.startswith("Training with rank 1 at 1/4 of its speed takes 1.50 ")
    (table,) = contrast.page(findings([run])[0]).tables
    assert "rank 1 at 1/4 of its speed / no slow rank" in table.rows[0]
    assert headline.endswith(" times as long as training without a slow rank for a step on 2 ranks.")


@pytest.mark.parametrize(
    "measure, first, other, word",
    [
        ("memory_bytes_per_rank", 10, 20, "better"),
        ("memory_bytes_per_rank", 20, 10, "worse"),
        ("memory_bytes_per_rank", 10, 10, "equal"),
        ("bits_per_entry", 1.0, 2.0, "less"),
        ("bits_per_entry", 2.0, 1.0, "more"),
        ("step", 1.0, 1.0, "equal"),  # simulated times have no noise
    ],
)
def test_numbers_without_noise_have_a_word(hand, measure, first, other, word):
    for scheme, value in (("ring", first), ("tree", other)):
        more = {} if measure == "step" else {measure: value}
        hand.train([steps(20)] * 2, aggregation=scheme, network="lan", **more)
    compare = SIDES.replace("}", f', measure = "{measure}"}}')
    (pair,) = contrast.pairs(*findings([hand.read(suite_text=suite_text(compare))]))
    assert pair.word == word


def test_accuracies_are_compared_in_percentage_points_over_seeds(hand):
    for scheme, accuracies in (("ring", (0.90, 0.92, 0.94)), ("tree", (0.80, 0.83, 0.83))):
        for seed, accuracy in enumerate(accuracies):
            row = (30, 1.0, 0.5, 0.25, accuracy, 960)
            hand.train([steps(20)] * 2, aggregation=scheme, seed=seed, evaluations=[row])
    compare = '{aggregation = ["ring", "tree"], measure = "final_accuracy"}'
    run = hand.read(suite_text=suite_text(compare))
    # differences of 10, 9 and 11 points; Student's t with 2 degrees of freedom: 4.303 / sqrt(3)
    says = "A ring changes the final accuracy by +10.0 (+7.5 to +12.5) percentage points against a tree for a step"
    assert answer(run).headline.startswith(says)


def test_a_suite_that_varies_one_key_compares_it_without_being_asked(hand):
    for scheme, ms in (("ring", 20), ("tree", 30), ("direct", 25)):
        for ranks in (1, 2, 3):
            hand.launches = 2
            hand.train([steps(ms / ranks)] * ranks, aggregation=scheme)
    run = hand.read(suite_text="[suite]\nname = 's'\n")
    found = answer(run)
    says = "A ring is 1.25 times as fast as a direct exchange, the next of 3, for a step on 3 ranks."
    assert found.headline.startswith(says)
    assert len(found.details) == 1  # on two ranks; on one all schemes are one program
    assert len(contrast.pairs(*findings([run]))) == 4


@pytest.mark.parametrize("text", ["[suite]\nname = 's'\nanswer = 'scaling'\n", "[suite]\nname = 's'\n"])
def test_a_suite_that_varies_several_keys_or_has_an_answer_compares_nothing(hand, text):
    hand.train([steps(20)] * 2)
    hand.train([steps(30)] * 2, aggregation="tree", **({} if "answer" in text else {"dataset": "other"}))
    assert answer(hand.read(suite_text=text)) is None


def test_strategies_with_rates_of_their_own_are_compared_if_each_has_one(hand):
    hand.launches = 2
    hand.train([steps(20)] * 2, training="synchronous", learning_rate=0.1)
    free = {"training": "asynchronous", "aggregation": "own", "common_clock": True}
    hand.train([steps(5)] * 2, learning_rate=0.01, **free)
    compare = '{training = ["asynchronous", "synchronous"]}'
    (pair,) = contrast.pairs(*findings([hand.read(suite_text=suite_text(compare))]))
    assert pair.word == "better" and pair.first.name == "asynchronous"


def test_strategies_are_named_as_elsewhere(hand):
    hand.launches = 2
    kinds = {"synchronous(bucket_bytes=0)": {}, "zero(stage=1)": {"system": "ZeRO-1"}}
    for training, fields in kinds.items():
        hand.train([steps(20)] * 2, training=training, **fields)
    run = hand.read(suite_text=suite_text('{training = ["synchronous", "zero"]}'))
    assert answer(run).headline.startswith("Synchronous training takes 1.00 times as long as ZeRO-1 for a step")


REPLAYED = """
[[case]]
kind = "replay"
model = "lenet5"
flops = 1e10
batch_per_rank = 16
ranks = 4
training = ["synchronous", "layerwise"]
steps = 2
network = "ethernet-10g"
"""
CASES = f"""
[[case]]
kind = "collective"
aggregation = ["ring", "tree"]
message_bytes = 4096
ranks = 2
{REPLAYED}{REPLAYED}straggler = {{rank = 1, factor = 5.0}}
"""
SLOW = "{rank = 1, factor = 5.0}"


REFUSED = {
    "'ring'": "compare: must be a table, not 'ring'",
    '{agregation = ["ring", "tree"]}': "unknown 'agregation'; did you mean 'aggregation'?",
    '{aggregation = ["ring", "three"]}': "aggregation: no case has 'three'; did you mean 'tree'?",
    '{aggregation = ["ring"]}': "aggregation: must be a list of two values or more",
    '{aggregation = ["ring", "tree"], measure = "tim"}': "measure: unknown 'tim'; did you mean 'time_",
    "{measure = 'step'}": "must have one key of the cases",
    f'{{straggler = ["", {SLOW}]}}': "no case has ''",
    f'{{straggler = ["noen", {SLOW}]}}': "no case has 'noen'; did you mean 'none'?",
    '{kind = ["collective", "replay"]}': "unknown 'kind'",
}
UNLIKE = "".join(
    f'[[case]]\nkind = "collective"\naggregation = "{name}"\nmessage_bytes = {size}\nranks = 2\n'
    for name, size in (("ring", 4), ("tree", 8))
)


def test_what_cannot_be_compared_is_refused_with_the_nearest_name():
    """``none`` is the side of the cases without the key. A ring and a tree that sum other bytes are no pair."""
    apart = "no cases with aggregation ring and tree are equal but for this key"
    for compare, cases, line in [*((one, CASES, line) for one, line in REFUSED.items()), (SIDES, UNLIKE, apart)]:
        chosen = suite.parse(suite_text(compare) + cases, "my.toml")
        with pytest.raises(UsageError, match=r"^my\.toml: \[suite\]: compare: ") as refused:
            check_answer(chosen, "my.toml")
        assert line in str(refused.value)
    check_answer(suite.parse(suite_text(f'{{straggler = ["none", {SLOW}]}}') + CASES, "my.toml"), "my.toml")


def test_a_page_says_why_nothing_is_compared(hand):
    for scheme in ("ring", "tree"):
        hand.train([steps(20)] * 2, aggregation=scheme, **({"bits_per_entry": 2.0} if scheme == "ring" else {}))
    compare = SIDES.replace("}", ', measure = "bits_per_entry"}')
    line = "Nothing is compared: no case with aggregation tree has a measured bits_per_entry."
    assert answer(hand.read(suite_text=suite_text(compare))).headline == line
