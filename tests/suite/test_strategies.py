"""Traits that a strategy declares, and the settings of a case that they allow."""

from hpcdl.analysis.run.record import Record

STRATEGIES = """
from hpcdl.training.parts.traits import Strategy

async def mine(comm, session, *, pace: int = 3, gait: str): ...

def check(ranks, settings):
    if settings["pace"] > ranks:
        raise ValueError(f"pace: {settings['pace']} on {ranks} ranks")

def title(ranks, settings):
    return f"{settings['gait']} at {settings['pace']}"

TRAITS = Strategy(check=check, title=title)
"""


def test_a_users_strategy_checks_all_its_settings(parsed, refused, written, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_strategies.py").write_text(STRATEGIES)
    mine = {"name": "my_strategies:mine", "gait": "trot"}
    cases = parsed(training=[mine, {**mine, "pace": 2}], ranks=4)
    assert [case.fields()["system"] for case in cases] == ["trot at 3", "trot at 2"]
    assert "training: pace: 3 on 2 ranks" in refused(written(training=mine, ranks=2))


def test_limits_of_a_training_are_those_that_it_reaches(parsed):
    """The last step before which a rank can fail, the latest outer step, and a slow rank that computes no batches."""
    four = {"ranks": 4, "global_batch": 96}
    dedicated = {"name": "asynchronous", "dedicated": True}
    for training, steps in ("asynchronous", 12), (dedicated, 9), ({"name": "sandblaster", "servers": 1}, 48):
        assert parsed(training=training, **four, failure={"rank": 2, "step": steps - 1})[0].failure
    assert parsed(training=dedicated, **four, straggler={"rank": 3, "factor": 2})  # updates take longer
    assert parsed(training={"name": "diloco", "period": 16, "delay": 4}, steps=20)
    assert parsed(training="sandblaster")[0].fields()["optimizer"] == "L-BFGS"


def test_the_record_has_the_numbers_of_a_straggler(parsed):
    slow, pausing, none = (
        parsed(straggler=straggler)[0].fields()
        for straggler in ({"rank": 1, "factor": 1.25}, {"rank": 0, "probability": 1e-9, "seconds": 2}, None)
    )
    numbers = ("straggler_factor", "straggler_pause_seconds", "straggler_pause_share")
    assert [slow[name] for name in numbers] == [1.25, 0, 0]
    assert [pausing[name] for name in numbers] == [1, 2, 1e-9]
    assert not none.keys() & set(numbers)


SHARES = {"weights": [3, 1]}
"""Valid on any number of ranks."""


def test_strategies_that_weigh_by_images_accept_unequal_shares(parsed):
    for name in ["synchronous", "layerwise", "parameter_averaging", "asynchronous"]:
        cases = parsed(training=name, shares=SHARES, ranks=[2, 4])
        assert [case.fields()["shares"] for case in cases] == ["3:1", "3:1"]
        assert [Record.of(case.fields()).words for case in cases] == [{"shares": "shares 3:1"}] * 2
        assert parsed(training=name)[0].fields()["shares"] is None


NOT_ALL_TRAIN = [
    ({"name": "asynchronous", "dedicated": True}, 4, 3),
    ({"name": "asynchronous", "dedicated": True, "servers": 2}, 7, 5),
    ({"name": "elastic_averaging", "dedicated": True}, 4, 3),
    ({"name": "sandblaster", "servers": 1}, 5, 3),
    ({"name": "asynchronous", "servers": 2}, 4, 4),
    ({"name": "elastic_averaging"}, 4, 4),
    ({"name": "sandblaster"}, 5, 5),
]
"""Strategy, ranks, and number of ranks that train."""


def test_batches_are_of_the_ranks_that_train(parsed, refused, written):
    for strategy, ranks, workers in NOT_ALL_TRAIN:
        (case,) = parsed(training=strategy, ranks=ranks, global_batch=None, batch_per_rank=16)
        assert case.fields()["global_batch"] == 16 * workers
        message = refused(written(training=strategy, ranks=ranks, global_batch=7 * workers + 1))
        by = f"ranks = {ranks}" if workers == ranks else f"the {workers} workers among {ranks} ranks"
        near = f"{7 * workers} and {8 * workers} are"
        assert message == f"[[case]] 1: global_batch: {7 * workers + 1} is not divisible by {by}; {near}"
