"""Legalization: how operators become loop-level functions, one file of rules per operator family."""

from kernelyard.legalize import activation as activation
from kernelyard.legalize import attention as attention
from kernelyard.legalize import convolution as convolution
from kernelyard.legalize import creation as creation
from kernelyard.legalize import elementwise as elementwise
from kernelyard.legalize import image as image
from kernelyard.legalize import indexing as indexing
from kernelyard.legalize import linear as linear
from kernelyard.legalize import normalization as normalization
from kernelyard.legalize import pooling as pooling
from kernelyard.legalize import quantization as quantization
from kernelyard.legalize import reduction as reduction
from kernelyard.legalize import shape as shape
from kernelyard.legalize.registry import Rule as Rule
from kernelyard.legalize.registry import has_rule as has_rule
from kernelyard.legalize.registry import legalize as legalize
from kernelyard.legalize.registry import legalize_call as legalize_call
