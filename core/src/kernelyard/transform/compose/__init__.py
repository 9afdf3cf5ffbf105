"""Composition: recognize operators that a model has decomposed into simpler ones (norms, softmax, attention)."""
