"""The hooks: imported when the plugin is first needed, and cheap; the backend is imported when it is made."""

from kernelyard.plugins.api import hookimpl


@hookimpl
def kernelyard_backend():
    from kernelyard_openblas.codegen import OpenBLASBackend

    return OpenBLASBackend()
