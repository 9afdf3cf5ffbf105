"""CUDA support shared by plugins for NVIDIA GPUs: an abstract driver, libraries, compilers."""
