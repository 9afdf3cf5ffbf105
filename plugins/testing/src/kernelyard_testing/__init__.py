"""The pytest plugin of the conformance kit; the kit itself is `kernelyard.testing.conformance`."""
