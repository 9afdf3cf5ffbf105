"""CUDA support shared by plugins for NVIDIA's GPUs: driver, libraries, compilers."""
