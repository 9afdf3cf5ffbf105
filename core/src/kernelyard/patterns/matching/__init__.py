"""Find where patterns match a function, and explain where they do not."""
