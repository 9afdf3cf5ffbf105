"""What plugins build on: the least time of work, and what converters of frontends emit."""
