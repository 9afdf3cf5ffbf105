"""Symbolic sizes: dims, their normal form and text, and tables of dims that are evaluated together."""

from kernelyard.dims.dim_table import DimTable as DimTable
from kernelyard.dims.expression import MAX_DIM as MAX_DIM
from kernelyard.dims.expression import Atom as Atom
from kernelyard.dims.expression import Bounds as Bounds
from kernelyard.dims.expression import Dim as Dim
from kernelyard.dims.expression import Function as Function
from kernelyard.dims.expression import Monomial as Monomial
from kernelyard.dims.expression import Shape as Shape
from kernelyard.dims.expression import Symbol as Symbol
from kernelyard.dims.expression import SymbolicDim as SymbolicDim
from kernelyard.dims.expression import as_symbol as as_symbol
from kernelyard.dims.expression import broadcast as broadcast
from kernelyard.dims.expression import ceildiv as ceildiv
from kernelyard.dims.expression import evaluate as evaluate
from kernelyard.dims.expression import floordiv as floordiv
from kernelyard.dims.expression import maximum as maximum
from kernelyard.dims.expression import minimum as minimum
from kernelyard.dims.expression import product as product
from kernelyard.dims.expression import substitute as substitute
from kernelyard.dims.expression import symbol as symbol
from kernelyard.dims.expression import symbols_of as symbols_of
from kernelyard.dims.text import MAX_TEXT as MAX_TEXT
from kernelyard.dims.text import is_identifier as is_identifier
from kernelyard.dims.text import parse as parse
