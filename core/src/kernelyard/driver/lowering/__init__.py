"""From placed IR to programs, kernels and modules of backends."""
