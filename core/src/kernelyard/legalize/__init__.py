"""Legalization: how operators become loop-level functions, one file of rules per operator family."""

from kernelyard.legalize.custom import CUSTOM as CUSTOM
from kernelyard.legalize.custom import CustomKernel as CustomKernel
from kernelyard.legalize.custom import custom_kernel as custom_kernel
from kernelyard.legalize.custom import find_kernel as find_kernel
from kernelyard.legalize.custom import is_compiled as is_compiled
from kernelyard.legalize.custom import isolate_kernels as isolate_kernels
from kernelyard.legalize.custom import op_of as op_of
from kernelyard.legalize.custom import register_kernel as register_kernel
from kernelyard.legalize.custom import unregister_kernel as unregister_kernel
from kernelyard.legalize.registry import Rule as Rule
from kernelyard.legalize.registry import find_rule as find_rule
from kernelyard.legalize.registry import has_rule as has_rule
from kernelyard.legalize.registry import legalize as legalize
from kernelyard.legalize.registry import legalize_call as legalize_call
from kernelyard.legalize.without_rule import WITHOUT_RULE as WITHOUT_RULE
