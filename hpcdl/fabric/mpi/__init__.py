"""The MPI interpreter: requests, natives, fault tolerance and the polling policy."""
