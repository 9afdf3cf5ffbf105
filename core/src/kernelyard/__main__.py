"""`python -m kernelyard`: the command line, for the interpreter at hand."""

from kernelyard.driver.cli import main

main()
