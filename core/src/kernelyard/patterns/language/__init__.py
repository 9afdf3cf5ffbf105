"""The dataflow pattern language: what a group of operators looks like, written as an expression."""
