"""Algebraic rewrites of matmuls and convolutions: scales, biases, strides, reshapes and concatenations around them."""
