"""The operator vocabulary: importing this package declares every operator.

One file per family; one declaration per operator holds its type rule, NumPy reference, samples and cost.
"""

from kernelyard.ops import activation as activation
from kernelyard.ops import attention as attention
from kernelyard.ops import binary as binary
from kernelyard.ops import convolution as convolution
from kernelyard.ops import core_calls as core_calls
from kernelyard.ops import creation as creation
from kernelyard.ops import data_dependent as data_dependent
from kernelyard.ops import detection as detection
from kernelyard.ops import elementwise as elementwise
from kernelyard.ops import formats as formats
from kernelyard.ops import image as image
from kernelyard.ops import indexing as indexing
from kernelyard.ops import linear as linear
from kernelyard.ops import normalization as normalization
from kernelyard.ops import pooling as pooling
from kernelyard.ops import quantization as quantization
from kernelyard.ops import quantized_recurrent as quantized_recurrent
from kernelyard.ops import random as random
from kernelyard.ops import recurrent as recurrent
from kernelyard.ops import reduction as reduction
from kernelyard.ops import roi_pooling as roi_pooling
from kernelyard.ops import shape as shape
from kernelyard.ops import trees as trees
