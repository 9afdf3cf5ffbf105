"""Define the interfaces of plugins: backends, code generators and frontends, and the manifest."""
