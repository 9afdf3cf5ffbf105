"""Executed code: Programs (straight-line code), VM functions (bytecode), and plans of their memory."""
