"""Many texts at once: continuous batching over a cache in pages."""
