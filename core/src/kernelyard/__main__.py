"""`python -m kernelyard`: the command line, for the interpreter at hand."""

from kernelyard.driver.cli import main

if __name__ == "__main__":
    main()
