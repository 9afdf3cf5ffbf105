"""Base classes of modules (`BindableModule`, `JSONRuntime`), and the two kinds that the core has."""
