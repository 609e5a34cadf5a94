"""Parts of pipeline parallelism: partition of layers, schedules, transfers between stages, evaluation."""
