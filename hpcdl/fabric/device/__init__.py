"""Transports of device arrays: staged through host memory, direct, IPC; and NCCL."""
