"""Run the cases of a suite: the case loop, the run folder and the watchdog."""
