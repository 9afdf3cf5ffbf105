"""Native code made in this process: the dispatch loop, the linker of object code, the C compiler."""
