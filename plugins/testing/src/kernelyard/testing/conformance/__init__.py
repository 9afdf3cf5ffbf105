"""Hold a backend to what its package claims: the conformance kit.

    pytest --pyargs kernelyard.testing --backend acme --scorecard acme-card

`claims` reads the package's `conformance.toml`, `cases` makes cases of it, `bench` carries one out, `worker`
does so in a process of its own, `scorecard` sums up, and `test_backend` is what pytest collects.
"""
