"""Commands of ``hpcdl``: each file declares one command as ``COMMAND``, and imports large packages late."""
