"""Start ranks, describe machine and software, check the machine, emulate a cluster."""
