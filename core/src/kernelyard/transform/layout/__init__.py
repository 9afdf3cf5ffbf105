"""Layouts: in which order of dims tensors between regions, images and constants lie in memory."""
