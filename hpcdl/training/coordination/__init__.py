"""What Sandblaster is made of: the coordinator, the portions of the work, the shards that keep the vectors."""
