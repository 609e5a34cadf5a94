"""What a strategy's module says of its settings, and who asks it."""

import pytest

STRATEGIES = """
async def mine(comm, session, *, pace: int = 3, gait: str): ...

def check(ranks, settings):
    if settings["pace"] > ranks:
        raise ValueError(f"pace: {settings['pace']} on {ranks} ranks")

def title(ranks, settings):
    return f"{settings['gait']} at {settings['pace']}"
"""


@pytest.fixture(autouse=True)
def _strategies(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_strategies.py").write_text(STRATEGIES)


def mine(**settings):
    return {"name": "my_strategies:mine", **settings}


def test_a_users_own_is_asked_about_all_its_settings(parsed):
    titles = [
        parsed(training=mine(gait="trot", **pace), ranks=4)[0].fields()["system"] for pace in ({}, {"pace": 2})
    ]
    assert titles == ["trot at 3", "trot at 2"]


def test_defaults_are_checked_too(refused, written):
    assert refused(written(training=mine(gait="trot"))) == "[[case]] 1: training: pace: 3 on 2 ranks"


def test_a_setting_without_a_default_must_be_given(refused, written):
    assert refused(written(training=mine())) == "[[case]] 1: training: needs a setting 'gait'"


@pytest.mark.parametrize("name", ["asynchronous", "elastic_averaging", "decentralized", "ad_psgd"])
def test_training_without_a_common_step_does_not_stop_at_its_target(refused, written, parsed, name):
    wish = {"target_accuracy": 0.9, "stop_at_target": True}
    message = f"[[case]] 1: stop_at_target: '{name}' has no common step after which to stop; leave this key out"
    assert refused(written(training=name, **wish)) == message
    assert parsed(training=["synchronous", "layerwise", "sandblaster"], **wish)


def test_without_a_target_nothing_stops(refused, written):
    said = "[[case]] 1: stop_at_target: there is no target_accuracy to stop at"
    assert refused(written(stop_at_target=True)) == said


@pytest.mark.parametrize("optimizer", ["sgd", "adam", {"name": "sgd", "weight_decay": 2e-4}])
def test_l_bfgs_takes_no_optimizer(refused, written, parsed, optimizer):
    said = "[[case]] 1: optimizer: 'sandblaster' goes by L-BFGS; leave this key out"
    assert refused(written(training="sandblaster", optimizer=optimizer)) == said
    assert parsed(training="sandblaster")[0].fields()["optimizer"] == "L-BFGS"
    assert refused(written(training="sandblaster"), ["case.optimizer.momentum=0.9"]) == said


@pytest.mark.parametrize("name", ["asynchronous", "sandblaster"])
def test_what_scales_no_loss_is_not_for_float16(refused, written, name):
    said = f"'{name}' has no loss scaling, which float16 needs; bfloat16 and float32 need none"
    assert refused(written(training=name, dtype="float16")) == f"[[case]] 1: dtype: {said}"


SHARES = {"weights": [3, 1]}
"""On any number of ranks."""


@pytest.mark.parametrize("name", ["synchronous", "layerwise", "parameter_averaging", "asynchronous"])
def test_shares_may_be_unequal_where_a_rank_counts_by_its_images(parsed, name):
    cases = parsed(training=name, shares=SHARES, ranks=[2, 4])
    assert [case.fields()["shares"] for case in cases] == ["3:1", "3:1"]
    assert all("shares 3:1" in case.fields()["configuration"].split(", ") for case in cases)
    assert parsed(training=name)[0].fields()["shares"] is None


@pytest.mark.parametrize(
    "name",
    ["ad_psgd", "d_psgd", "decentralized", "elastic_averaging", "sandblaster", "synchronous_elastic_averaging"],
)
def test_elsewhere_they_are_refused(refused, written, name):
    these = "asynchronous, layerwise, parameter_averaging, synchronous"
    said = f"[[case]] 1: shares: '{name}' counts all ranks alike; these count images: {these}"
    assert refused(written(training=name, shares=SHARES)) == said


@pytest.mark.parametrize(
    ("shares", "changed", "said"),
    [
        ({"weights": [1, 1, 1]}, {}, "weights: 3 of them, but 2 to share a batch"),
        (SHARES, {"training": {"name": "asynchronous", "dedicated": True}}, "weights: 2 of them, but 1 to share"),
        ({"weights": [1, 99]}, {}, "weights: with 1:99 somebody would have none of 64 images"),
        ({"weights": [2, 0]}, {}, "weights: must be whole numbers of at least 1, not [2, 0]"),
        ({"weights": 3}, {}, "setting 'weights' must be tuple[int, ...], not 3"),
        ({"weigths": [3, 1]}, {}, "unknown setting 'weigths'; did you mean 'weights'?"),
        ({}, {}, "needs a setting 'weights'"),
    ],
)
def test_shares_that_cannot_be(refused, written, shares, changed, said):
    assert refused(written(shares=shares, **changed)).startswith(f"[[case]] 1: shares: {said}")


LOCAL = {"name": "parameter_averaging", "period": 4}


@pytest.mark.parametrize(
    ("post_local", "schedule", "said"),
    [
        ({"post_local": True}, "constant", "post_local: the learning rate never falls"),
        ({"post_local": True}, {"name": "step", "at": [0.99]}, "post_local: the learning rate never falls"),
        (
            {"post_local": True},
            {"name": "constant", "warmup": 0.5, "warmup_from": 0.1},
            "post_local: the learning",
        ),
        ({"post_local": True}, "polynomial", "post_local: the learning rate always falls"),
        ({"local_from": 20}, "constant", "local_from: 20, but there are 20 steps, none of them local"),
    ],
)
def test_what_never_becomes_local_is_refused(refused, written, post_local, schedule, said):
    message = refused(written(training={**LOCAL, **post_local}, schedule=schedule, steps=20))
    assert message.startswith(f"[[case]] 1: training: {said}")
    assert "post_local" not in said or message.endswith(" falls; give local_from, the first local step")


@pytest.mark.parametrize(
    ("post_local", "schedule"),
    [
        ({"post_local": True}, {"name": "step", "at": [0.5]}),
        ({"post_local": True}, {"name": "polynomial", "warmup": 0.5, "warmup_from": 0.1}),
        ({"post_local": True, "period": 1}, "constant"),
        ({"local_from": 19}, "constant"),
    ],
)
def test_what_does_is_not(parsed, post_local, schedule):
    assert parsed(training={**LOCAL, **post_local}, schedule=schedule, steps=20)
