"""What asynchronous training is made of: a server of each shard, its clients, and their messages."""
