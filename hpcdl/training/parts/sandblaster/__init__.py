"""Parts of Sandblaster: the coordinator, the portions of a batch, the shards of the vectors."""
