"""Asynchronous training with parameter servers: one server and one client for several papers.

A worker sends a :class:`~hpcdl.training.parts.servers.messages.Request` to every server, and the sum of its
gradients if it pushes. If it fetches, a server answers with its shard of the parameters and grants mini-batches::

    worker                                     server of a shard
    Request, gradient           ------------>  collects gradients; an update takes the mean of ``collect``
    (computes the next one)                    optimizer.update(shard, mean, rate)
    parameters                  <------------  Answer, shard: once the rules let the worker continue

All differences between the papers are in two places. :class:`~hpcdl.training.parts.servers.messages.Rules` tell a
server how many gradients make an update, which it discards, and how far a worker may be ahead. The strategy's
``work`` program tells when a worker fetches and pushes.

The one rule: only servers count. They grant mini-batches, so that all W workers together train on steps x W of
them, also when one is fast or fails. A worker without a grant stops. Only the first server's grants are used.

Every update has the session's rate at the number of global batches applied. If shares are unequal, a worker's
gradient is its part of the global gradient times W, and its mini-batch counts by its share. Evaluations, after the
end, test the servers' snapshots.

If a worker fails the others train on its mini-batches that were not pushed. Its last push may reach only some
servers, as in DistBelief. If a server fails PeerLost is raised. On a mesh each model group is one worker that
follows its first rank, every part of the layers has servers of its own, and a failed rank ends the training.

Messages per exchange and server: a request, and V / ``servers`` bytes with a push (V: bytes of the parameters); an
answer and V / ``servers`` bytes with a fetch. With a compressor a push has its message for each shard. A fetch has
16 bits per parameter with fp16 and bf16.

Versions: a shard's version is the number of its updates. A request names the version of the parameters of its
first gradient; the difference when the gradient is applied is its staleness.

``messages.py`` has all rules; open it first. The strategies are in ``hpcdl/training/parameter_servers.py``.
"""
