"""Run an Executable: the virtual machine, execution contexts, programs bound to memory, profiling."""
