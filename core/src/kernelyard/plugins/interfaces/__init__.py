"""What a plugin implements and declares: backends, code generators and frontends, and its manifest."""
