"""What tests of the core and of plugins share: the oracle, assertions, cases of every operator, random modules.

`kernelyard.testing.strategies` needs hypothesis; the rest needs nothing beyond the core.
"""

from kernelyard.testing.assertions import assert_allclose as assert_allclose
from kernelyard.testing.assertions import assert_declined as assert_declined
from kernelyard.testing.assertions import assert_offloaded as assert_offloaded
from kernelyard.testing.assertions import relative_error as relative_error
from kernelyard.testing.comparison import StepError as StepError
from kernelyard.testing.comparison import compare_executables as compare_executables
from kernelyard.testing.op_cases import OpCase as OpCase
from kernelyard.testing.op_cases import assert_conforms as assert_conforms
from kernelyard.testing.op_cases import op_cases as op_cases
from kernelyard.testing.reference import assert_same_meaning as assert_same_meaning
from kernelyard.testing.reference import evaluate as evaluate
