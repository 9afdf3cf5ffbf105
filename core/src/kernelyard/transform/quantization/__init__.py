"""Quantized models and weights: dequantize is moved, shared, fused, or replaced by integer products."""
