"""Parts that optimizers share, and learning-rate schedules."""
