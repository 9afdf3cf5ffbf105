"""The PTX of wgmma, for the shapes and layouts that a program's kernels use.

Source: PTX ISA 8.8, "wgmma.mma_async".
"""

from __future__ import annotations

from kernelyard_native_cuda.codegen.types import stored

_KINDS = {"float16": "f16", "bfloat16": "bf16"}


def wgmma_text(dtype: str, columns: int, a_along_sum: bool, b_along_sum: bool) -> str:
    """Return the function `wgmma<...>` for 64 rows, some columns and 16 elements of the sum.

    a_along_sum, b_along_sum: whether lines of the operand's matrix run along the sum (K-major), or along its rows.

    Example:
        >>> "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16" in wgmma_text("float16", 8, True, False)
        True
    """
    count, kind = columns // 2, _KINDS[dtype]
    totals = ", ".join(f"%{n}" for n in range(count))
    constraints = ", ".join(f'"+f"(totals[{n}])' for n in range(count))
    form = f"{stored(dtype)}, {columns}, {str(a_along_sum).lower()}, {str(b_along_sum).lower()}"
    take = f"float (&totals)[{count}], unsigned long long a, unsigned long long b, bool adds"
    layouts = f"{int(not a_along_sum)}, {int(not b_along_sum)}"
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
    return f"""#ifndef KERNELYARD_EMULATION
template <> __device__ inline void wgmma<{form}>({take}) {{
  asm volatile("{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %{count + 2}, 0;\\n"
               "{instruction} {{{totals}}}, %{count}, %{count + 1}, adds, 1, 1, {layouts};\\n}}"
               : {constraints}
               : "l"(a), "l"(b), "r"((int)adds));
}}
#endif
"""
