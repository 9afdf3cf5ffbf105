"""The PTX of wgmma, for the shapes and layouts that a program's kernels use.

Source: PTX ISA 8.8, "wgmma.mma_async".
"""

from __future__ import annotations

from kernelyard_native_cuda.codegen.types import stored_type

_KINDS = {"float16": "f16", "bfloat16": "bf16"}


def wgmma_text(dtype: str, columns: int, a_along_sum: bool | None, b_along_sum: bool) -> str:
    """Return the function `wgmma<...>` for 64 rows, some columns and 16 elements of the sum.

    a_along_sum, b_along_sum: whether lines of the operand's matrix run along the sum (K-major), or along its rows;
    None: the operand is in registers.

    Example:
        >>> "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16" in wgmma_text("float16", 8, True, False)
        True
    """
    count, kind = columns // 2, _KINDS[dtype]
    layouts = [along for along in (a_along_sum, b_along_sum) if along is not None]
    form = ", ".join((stored_type(dtype), str(columns), *(str(along).lower() for along in layouts)))
    if a_along_sum is None:
        a_type, registers, a = "const unsigned (&a)[4]", 4, ", ".join(f'"r"(a[{n}])' for n in range(4))
    else:
        a_type, registers, a = "unsigned long long a", 1, '"l"(a)'
    totals, factor = _list(0, count), _list(count, registers)
    factor = f"{{{factor}}}" if a_along_sum is None else factor
    b, adds = count + registers, count + registers + 1
    constraints = ", ".join(f'"+f"(totals[{n}])' for n in range(count))
    transposed = ", ".join(str(int(not along)) for along in layouts)
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
    return f"""#ifndef KERNELYARD_EMULATION
template <> __device__ inline void wgmma<{form}>(float (&totals)[{count}], {a_type}, unsigned long long b, bool adds) {{
  asm volatile("{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %{adds}, 0;\\n"
               "{instruction} {{{totals}}}, {factor}, %{b}, adds, 1, 1, {transposed};\\n}}"
               : {constraints}
               : {a}, "l"(b), "r"((int)adds));
}}
#endif
"""


def _list(first: int, count: int) -> str:
    """Return the operands of an instruction from a number on."""
    return ", ".join(f"%{n}" for n in range(first, first + count))
