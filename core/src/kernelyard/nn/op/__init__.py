"""Functions over tensors: thin wrappers of the operator vocabulary, with axes from the end and other comforts."""

from kernelyard.nn.op.elementwise import *  # noqa: F403
from kernelyard.nn.op.elementwise import __all__ as _elementwise
from kernelyard.nn.op.network import *  # noqa: F403
from kernelyard.nn.op.network import __all__ as _network
from kernelyard.nn.op.reduction import *  # noqa: F403
from kernelyard.nn.op.reduction import __all__ as _reduction
from kernelyard.nn.op.shape import *  # noqa: F403
from kernelyard.nn.op.shape import __all__ as _shape

__all__ = sorted([*_elementwise, *_network, *_reduction, *_shape])  # pyright: ignore[reportUnsupportedDunderAll]
