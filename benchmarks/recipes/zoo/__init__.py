"""A zoo of architectures with random weights: no kernel or pass was tuned on them."""
