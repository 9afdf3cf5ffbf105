"""LLVM modules: the text of functions with what they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def module_text(
    functions: Iterable[str], declarations: Mapping[str, str], vector_bits: int, attributes: Sequence[str] = ()
) -> str:
    """Join functions and declarations to one LLVM module, for vectors of `vector_bits`.

    attributes: what functions have besides.

    Its metadata: !0 is the node of `!invariant.load`, !1 of `!nontemporal`.
    """
    widths = f'"prefer-vector-width"="{vector_bits}" "min-legal-vector-width"="{vector_bits}"'
    first = " ".join(("nounwind", *attributes, widths))
    groups = f"attributes #0 = {{ {first} }}", "attributes #1 = { nounwind willreturn memory(none) }"
    return "\n".join((*functions, *sorted(declarations.values()), *groups, "!0 = !{}", "!1 = !{i32 1}", ""))
