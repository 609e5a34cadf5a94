"""The reference kernels: numpy and the BLAS it brings."""
