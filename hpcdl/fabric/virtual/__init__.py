"""All ranks in this process: one engine under two clocks.

``world.py`` runs the programs of all ranks as coroutines and matches their messages by MPI's rules
(``groups.py``). What differs is the clock, and with it the choice of the next rank (``clocks.py``)::

    in_process      seeded and arbitrary, so that tests meet many schedules; sends wait for their receiver, and a
                    deadlock ends with who waits for whom
    simulated       the earliest in virtual time; messages cost what :mod:`hpcdl.fabric.network` says, and share
                    links where the network has a topology (``flows.py``)

Payloads are real, or only sizes: then thousands of ranks take seconds. Where all ranks do the same but for a
shift, those of one host stand for all (``shifts.py``).
"""
