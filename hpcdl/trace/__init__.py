"""What a run leaves behind: the recorder on every rank, the HDF5 file on rank 0, and the way back."""
