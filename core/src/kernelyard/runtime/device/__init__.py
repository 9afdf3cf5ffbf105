"""Devices and tensors on them: drivers, DLPack, arrays in memory of a device."""
