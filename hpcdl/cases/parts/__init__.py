"""Parts that kinds of case share: keys, choices, the spec of a training, autotuning, link probes."""
