"""Dims as C expressions over `int64_t` variables."""

from __future__ import annotations

from collections.abc import Mapping

from kernelyard.dims.expression import Atom, Dim, Symbol

C_FUNCTIONS = """\
static inline int64_t ky_floordiv(int64_t a, int64_t b) {
  if (b == 0) return -1; /* which no size is */
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}
static inline int64_t ky_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ky_min(int64_t a, int64_t b) { return a < b ? a : b; }
/* The common size under NumPy's rule; -1, which no size is, where there is none. */
static inline int64_t ky_broadcast(int64_t a, int64_t b) { return a == b || b == 1 ? a : a == 1 ? b : -1; }
"""


def to_c(dim: Dim, names: Mapping[str, str]) -> str:
    """The C expression of a dim; `names` are those of the symbols' variables, `C_FUNCTIONS` what it may call.

    Example:
        >>> from kernelyard import dims
        >>> to_c(dims.parse("(h + 1) // 2 * 4"), {"h": "s[0]"})
        '(INT64_C(4) * ky_floordiv((s[0] + INT64_C(1)), INT64_C(2)))'
    """
    if isinstance(dim, int):
        return f"INT64_C({dim})" if dim >= 0 else f"(-INT64_C({-dim}))"

    def of_atom(atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return names[atom.name]
        return f"ky_{atom.name}({to_c(atom.left, names)}, {to_c(atom.right, names)})"

    terms = []
    for monomial, coefficient in dim.terms:
        factors = [] if coefficient == 1 and monomial else [to_c(coefficient, names)]
        terms.append(" * ".join(factors + [of_atom(atom) for atom in monomial]))
    return f"({' + '.join(terms)})"
