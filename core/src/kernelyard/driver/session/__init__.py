"""All that is settled before a model is compiled: target, backends, options, and the imported model."""
