"""What plugins for GPUs of NVIDIA share: driver, libraries, compilers."""
