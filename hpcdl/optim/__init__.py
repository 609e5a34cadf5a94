"""Update rules on flat vectors, one optimizer per file, and learning-rate schedules."""
