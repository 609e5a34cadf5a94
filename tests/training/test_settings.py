"""Settings of strategies: wrong ones are refused in one line, and the title is the literature's name."""

import re

import pytest
from contract.asynchronous import chosen, title


def test_bad_settings_are_refused_in_one_line():
    for name, settings, message in [
        ("ad_psgd", {"graph": "rings"}, "graph: unknown 'rings'; did you mean 'ring'?"),
        ("asynchronous", {"servers": 5}, "servers: 5 on 4 ranks, at most 4 fit"),
        ("asynchronous", {"servers": 4, "dedicated": True}, "servers: 4 dedicated on 4 ranks, at most 3 fit"),
        ("asynchronous", {"servers": 0}, "servers: must be at least 1, not 0"),
        ("asynchronous", {"strength": 0.1}, "strength: needs delay_compensation"),
        ("asynchronous", {"collect": 2}, "unknown setting 'collect'; 'm_synchronous', 'softsync', 'ssp' have it"),
        ("diloco", {"period": 4, "fragments": 5}, "fragments: must be at most 4, by the period, not 5"),
        ("diloco", {"outer_optimizer": "adam"}, "outer_optimizer: unknown 'adam'; valid names: nesterov, sgd"),
        ("diloco", {"outer_rate": 0.0}, "outer_rate must be positive, but is 0.0"),
        ("diloco", {"outer_momentum": 1.0}, "outer_momentum must be at least 0 and less than 1, but is 1.0"),
        ("downpour", {"local_rate": 0.5}, "local_rate: needs n_fetch of at least 2, or overlap"),
        ("elastic_averaging", {"moving_rate": 1.5}, "moving_rate: must be more than 0 and at most 1"),
        ("m_synchronous", {"collect": 4, "dedicated": True}, "collect: must be 1 to 3"),
        ("sandblaster", {"servers": 3}, "servers: 3 of them, a coordinator and a worker need more than 4 ranks"),
        ("sandblaster", {"history": 1001}, "history: must be at most 1000"),
        ("softsync", {"collect": "most"}, "collect: unknown 'most'; valid names: all"),
        ("ssp", {"collect": 5}, "collect: must be 1 to 4, the number of workers, or 'all', not 5"),
        ("synchronous", {"bucket_bytes": 1}, "bucket_bytes: must be 0 "),
        ("synchronous_elastic_averaging", {"beta": 1.5}, "beta: must be more than 0 and at most 1"),
        ("zero", {"stage": 4}, "stage: must be 1, 2 or 3, not 4"),
        ("zero", {"ranks_per_node": 3}, "ranks_per_node: 4 ranks cannot be divided into nodes of 3"),
        ("zero", {"stage": 3, "bucket_bytes": 0}, "bucket_bytes: stage 3 gathers layers; leave this setting out"),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}") as error:
            chosen(4, {"name": name, **settings})
        assert "\n" not in str(error.value)
    for name in ("elastic_averaging", "asynchronous"):
        with pytest.raises(ValueError, match="dedicated"):
            chosen(1, {"name": name, "dedicated": True})


def test_the_title_is_the_literatures_name():
    for name, settings, expected in [
        ("asynchronous", {}, "Downpour"),
        ("asynchronous", {"delay_compensation": "constant"}, "DC-ASGD"),
        ("asynchronous", {"delay_compensation": "adaptive"}, "DC-ASGD-a"),
        ("diloco", {}, "DiLoCo"),
        ("diloco", {"fragments": 2}, "Streaming DiLoCo"),
        ("diloco", {"outer_optimizer": "sgd", "outer_rate": 1.0, "outer_momentum": 0.0}, "local SGD"),
        ("ssp", {"collect": 4, "bound": 0}, "BSP"),
        ("ssp", {"bound": 3}, "SSP(3)"),
        ("ssp", {"bound": 3, "collect": 2, "push": "updates"}, "SSP(3) collecting 2 of updates"),
        ("softsync", {}, "1-softsync"),
        ("softsync", {"collect": 1}, "4-softsync"),
        ("softsync", {"collect": 3}, "softsync collecting 3"),
        ("softsync", {"collect": 3, "dedicated": True}, "1-softsync"),
        ("m_synchronous", {"collect": 3}, "3-synchronous"),
        ("m_synchronous", {}, "BSP"),
        ("zero", {"stage": 3}, "ZeRO-3"),
        ("zero", {"ranks_per_node": 2}, "ZeRO-2 within 2 ranks"),
    ]:
        assert title(4, {"name": name, **settings}) == expected
    thirty = {"name": "softsync", "collect": 2, "dedicated": True}
    assert title(31, thirty) == "15-softsync"  # 30 workers: an update has 30 // 15 gradients
