"""The command line: `main`, its commands, and what these share."""
