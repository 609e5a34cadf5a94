"""Training strategies: one or a family per file, close to the pseudo-code of their papers.

A strategy is ``async def name(comm, session)`` with its settings as keyword arguments. The session
(``parts/session.py``) is everything it works with: the replica with its flat vectors, the optimizer, images, the
sum over ranks, and the journal. The strategy decides which rank computes which gradient, what is sent when, and
who updates. It has no clock, and does not know whether ranks are processes or simulated::

    for step in range(session.steps):
        with session.journal.step(epoch, rate):
            await gradient(...)          # input, forward, loss, backward: layer by layer
            await session.reduce(...)    # compression and scheme of the case
            session.optimizer.update(...)

``parts/`` has what several papers share: buckets, evaluation, meshes of ranks, pipelines. A file's ``TRAITS``
declares the traits that differ from the defaults of :class:`hpcdl.training.parts.traits.Strategy`; nothing else
lists strategies. Open ``synchronous.py`` first.
"""
