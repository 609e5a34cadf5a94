"""Parts of asynchronous training: server, client, their messages, delay compensation."""
