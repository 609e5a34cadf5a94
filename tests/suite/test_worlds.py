"""Impossible stragglers, failures and simulated networks are refused in one line."""


def asynchronous(**settings):
    return {"name": "asynchronous", **settings}


def sandblaster(**settings):
    return {"name": "sandblaster", **settings}


def test_pauses_of_ranks_without_batches_are_refused(written, refused, parsed):
    for training, idle, who in [
        (asynchronous(dedicated=True), 3, "0 to 2"),
        (sandblaster(servers=1), 0, "2 to 3"),
        (sandblaster(servers=1), 1, "2 to 3"),
        ({"name": "elastic_averaging", "dedicated": True}, 0, "1 to 3"),
    ]:
        keys, pauses = {"training": training, "ranks": 4, "global_batch": 96}, {"probability": 0.5, "seconds": 0.1}
        message = f"straggler: rank: rank {idle} has no batches to pause before; these have: {who}"
        by_rank = {"by_rank": [0.1 * (rank == idle) for rank in range(4)]}
        for straggler in ({"rank": idle, **pauses}, by_rank):
            assert refused(written(**keys, straggler=straggler)) == f"[[case]] 1: {message}"
        assert parsed(**keys, straggler={"rank": 2, **pauses})
        assert parsed(**keys, straggler={"rank": idle, "factor": 2})  # updates take longer


def test_a_failure_after_the_last_step_is_refused(written, refused, parsed):
    for training, most in [
        (asynchronous(), 3 * 4),
        (asynchronous(dedicated=True), 3 * 3),
        (sandblaster(servers=1), 3 * 2 * 8),
    ]:
        keys = {"training": training, "ranks": 4, "global_batch": 96}
        message = f"failure: step: {most}, but no rank of this training takes more than {most} steps"
        assert refused(written(**keys, failure={"rank": 2, "step": most})) == f"[[case]] 1: {message}"
        assert parsed(**keys, failure={"rank": 2, "step": most - 1})[0].failure


def test_the_record_has_the_numbers_of_a_straggler(parsed):
    slow, pausing, none = (
        parsed(straggler=straggler)[0].fields()
        for straggler in ({"rank": 1, "factor": 1.25}, {"rank": 0, "probability": 1e-9, "seconds": 2}, None)
    )
    numbers = ("straggler_factor", "straggler_pause_seconds", "straggler_pause_share")
    assert [slow[name] for name in numbers] == [1.25, 0, 0]
    assert [pausing[name] for name in numbers] == [1, 2, 1e-9]
    assert not none.keys() & set(numbers)
