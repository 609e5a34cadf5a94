"""Asynchronous training with parameter servers: one server and one client for several papers.

A worker sends a :class:`~hpcdl.training.parts.servers.messages.Request` to every server, and the sum of its
gradients if it pushes. If it fetches, a server answers with its shard of the parameters and grants mini-batches::

    worker                                     server of a shard
    Request, gradient           ------------>  collects gradients; an update takes the mean of ``collect``
    (computes the next one)                    optimizer.update(shard, mean, rate)
    parameters                  <------------  Answer, shard: once the rules let the worker continue

All differences between the papers are in two places. :class:`~hpcdl.training.parts.servers.server.Rules` tell a
server how many gradients make an update, which it discards, and how far a worker may be ahead. The strategy's
``work`` tells when a worker fetches and pushes.

The one rule: only servers count. They grant mini-batches, so that all workers together train on steps x W of them,
also when one is fast or fails. A worker without a grant stops. Only the first server's grants are used.

Versions: a shard's version is the number of its updates. A request names the version of the parameters of its
first gradient; the difference when the gradient is applied is its staleness.

``server.py`` has the rules and the server; open it first. ``client.py`` is a worker's side, ``messages.py`` their
messages and the roles of ranks.
"""
