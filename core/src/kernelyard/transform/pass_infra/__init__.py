"""Pass infrastructure: passes and sequences of passes, instruments, bisection, rewrite rules, unused names."""
