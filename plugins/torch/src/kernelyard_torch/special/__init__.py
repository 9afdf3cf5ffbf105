"""Special functions, decomposed into operators that have converters: one file per family, all computed in float64."""
