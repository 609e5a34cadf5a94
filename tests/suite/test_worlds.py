"""Impossible stragglers, failures and simulated networks are refused in one line."""

ASYNCHRONOUS = {"training": "asynchronous"}
SIMULATED = {"network": "gemini"}


def test_impossible_settings_are_refused(written, refused):
    for keys, message in [
        ({"straggler": {"rank": 2, "factor": 5}}, "straggler: rank 2 is not among the 2 ranks of the case"),
        ({"straggler": {"rank": -1, "factor": 5}}, "straggler: rank -1 is not among the 2 ranks"),
        ({"straggler": {"rank": "every", "factor": 5}}, "straggler: rank: must be a number or 'all', not 'every'"),
        ({"straggler": {"rank": 1, "factor": 0.5}}, "straggler: factor: must be from 1 to 10000, not 0.5"),
        ({"straggler": {"rank": 1, "fctor": 5}}, "straggler: unknown setting 'fctor'; did you mean 'factor'?"),
        ({"straggler": {"factor": 5}}, "straggler: needs a setting 'rank'"),
        ({"straggler": {"rank": 1}}, "straggler: give a factor of more than 1, or seconds of its pauses"),
        ({"straggler": {"rank": 1, "factor": "big"}}, "straggler: setting 'factor' must be float, not 'big'"),
        ({"straggler": 5}, "straggler: must be a table, as {key = value}, not 5"),
        (
            {**ASYNCHRONOUS, "failure": {"rank": 0, "step": 5}},
            "failure: rank: 'asynchronous' does not go on without rank 0",
        ),
        ({**ASYNCHRONOUS, "failure": {"rank": 1}}, "failure: needs a setting 'step'"),
        ({**ASYNCHRONOUS, "failure": {"rank": 1, "step": -1}}, "failure: step: must be at least 0, not -1"),
        ({**ASYNCHRONOUS, "failure": {"rank": 2, "step": 1}}, "failure: rank 2 is not among the 2 ranks"),
        ({"network": "gmini", "flops": 1e9}, "network: unknown 'gmini'; did you mean 'gemini'?"),
        (SIMULATED, "network: a simulated case needs exactly one of device, flops, times"),
        ({**SIMULATED, "flops": 1e9, "device": "k20"}, "network: a simulated case needs exactly one of"),
        ({**SIMULATED, "device": "k21"}, "device: unknown 'k21'; did you mean 'k20'?"),
        ({**SIMULATED, "flops": 1e9, "jitter": -1}, "jitter: must be at least 0, not -1"),
    ]:
        assert message in refused(written(**keys))


def asynchronous(**settings):
    return {"name": "asynchronous", **settings}


def sandblaster(**settings):
    return {"name": "sandblaster", **settings}


NONE = "with such settings none may fail"


def test_the_message_names_the_ranks_that_may_fail(written, refused):
    for training, rank, who in [
        (asynchronous(), 0, "these may fail: 1 to 3"),
        (asynchronous(servers=2), 1, "these may fail: 2 to 3"),
        (asynchronous(dedicated=True), 3, "these may fail: 1 to 2"),
        (asynchronous(servers=4), 3, NONE),
        (sandblaster(), 1, NONE),
        (sandblaster(servers=1), 1, "these may fail: 2 to 3"),
        (sandblaster(servers=2), 3, NONE),
    ]:
        text = written(training=training, ranks=4, global_batch=12, failure={"rank": rank, "step": 1})
        without = f"{training['name']!r} does not go on without rank {rank}"
        assert refused(text) == f"[[case]] 1: failure: rank: {without}; {who}"


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
