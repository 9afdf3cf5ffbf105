"""Small kernels written by hand, for tests of single instructions."""

from __future__ import annotations

import numpy as np

from .program import GlobalMemory, Program
from .scalars import PACKED, SCALARS, nbytes_of

HEAD = ".version 8.8\n.target sm_80\n.address_size 64\n"


def kernel(body: str, parameters: int, declarations: str = "") -> str:
    """Return a module with the kernel `f`: its parameters are in %rd0, %rd1, ..., the number of its thread in %t."""
    names = ", ".join(f".param .u64 p{number}" for number in range(parameters))
    loads = "\n".join(f"ld.param.u64 %rd{number}, [p{number}];" for number in range(parameters))
    return f"""{HEAD}{declarations}
.visible .entry f({names})
{{
.reg .pred %p<8>;
.reg .b16 %h<8>;
.reg .b32 %r<32>;
.reg .b32 %t;
.reg .f32 %f<32>;
.reg .f64 %d<8>;
.reg .b64 %rd<32>;
{loads}
mov.u32 %t, %tid.x;
{body}
ret;
}}
"""


def launch(text: str, arrays: list[np.ndarray], threads: int = 32, blocks: int = 1) -> list[np.ndarray]:
    """Run the kernel `f` of a text on copies of arrays, and return these."""
    memory = GlobalMemory()
    addresses = [memory.put(array) for array in arrays]
    Program(text, memory).launch("f", (blocks, 1, 1), (threads, 1, 1), addresses)
    return [memory.get(address, a.shape, a.dtype) for address, a in zip(addresses, arrays, strict=True)]


def apply(instruction: str, *operands: tuple[str, np.ndarray], result: str) -> np.ndarray:
    """Return what an instruction gives for arrays, an element for each thread. In its text %0 is the result, %1 the first
    operand; each is a register as wide as its type, of at least 16 bits.
    """
    types = [result, *(name for name, _ in operands)]
    body = []
    for number, name in enumerate(types):
        body.append(f".reg .b{8 * max(nbytes_of(name), 2)} %x{number};")
        body.append(f"mad.wide.u32 %rd{10 + number}, %t, {nbytes_of(name)}, %rd{number};")
        if number:
            body.append(f"ld.global.b{8 * nbytes_of(name)} %x{number}, [%rd{10 + number}];")
    text = instruction
    for number in range(len(types)):
        text = text.replace(f"%{number}", f"%x{number}")
    body += [f"{text};", f"st.global.b{8 * nbytes_of(result)} [%rd10], %x0;"]
    count = len(operands[0][1])
    arrays = [np.ascontiguousarray(array) for _, array in operands]
    shape = (count, 2) if result in PACKED else (count,)
    made = np.zeros(shape, SCALARS[PACKED.get(result, result)])
    return launch(kernel("\n".join(body), len(types)), [made, *arrays], threads=count)[0]
