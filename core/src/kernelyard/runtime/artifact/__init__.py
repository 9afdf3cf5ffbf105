"""The `.kyar` file: container, tensors, reading and writing, and the loaders of its modules."""
