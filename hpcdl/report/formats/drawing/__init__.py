"""Drawing of charts."""
