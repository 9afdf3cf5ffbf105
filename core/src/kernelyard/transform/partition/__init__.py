"""Partitioning: patterns to composites, composites to regions, regions to RuntimeModules of backends."""
