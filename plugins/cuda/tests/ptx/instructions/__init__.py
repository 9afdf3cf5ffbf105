"""Execute PTX instructions, by family. `HANDLERS` has the handlers by opcode."""

from __future__ import annotations

from . import arithmetic, asynchronous, bits, comparison, control, conversion, data_movement, functions, matrix, warp

HANDLERS = {
    opcode: handler
    for family in (
        arithmetic,
        asynchronous,
        bits,
        comparison,
        control,
        conversion,
        data_movement,
        functions,
        matrix,
        warp,
    )
    for opcode, handler in family.HANDLERS.items()
}
