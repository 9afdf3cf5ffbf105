"""Functions over tensors: thin wrappers of the operator vocabulary, with axes from the end and other comforts."""

from kernelyard.nn.op.calls import *  # noqa: F403
from kernelyard.nn.op.calls import __all__ as _calls
from kernelyard.nn.op.control_flow import *  # noqa: F403
from kernelyard.nn.op.control_flow import __all__ as _control_flow
from kernelyard.nn.op.elementwise import *  # noqa: F403
from kernelyard.nn.op.elementwise import __all__ as _elementwise
from kernelyard.nn.op.network import *  # noqa: F403
from kernelyard.nn.op.network import __all__ as _network
from kernelyard.nn.op.reduction import *  # noqa: F403
from kernelyard.nn.op.reduction import __all__ as _reduction
from kernelyard.nn.op.sampling import *  # noqa: F403
from kernelyard.nn.op.sampling import __all__ as _sampling
from kernelyard.nn.op.shape import *  # noqa: F403
from kernelyard.nn.op.shape import __all__ as _shape

__all__ = sorted([*_calls, *_control_flow, *_elementwise, *_network, *_reduction, *_sampling, *_shape])  # pyright: ignore[reportUnsupportedDunderAll]
