"""Dims as C expressions over `int64_t` variables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from kernelyard.dims.expression import Atom, Dim, Symbol

C_FUNCTIONS = """\
#define KY_NONE INT64_MIN /* of what has no value: a division by zero, sizes that do not broadcast, an overflow */
static inline int ky_lacks(int64_t a, int64_t b) { return a == KY_NONE || b == KY_NONE; }
static inline int64_t ky_plus(int64_t a, int64_t b) {
  int64_t sum;
  return ky_lacks(a, b) || __builtin_add_overflow(a, b, &sum) ? KY_NONE : sum;
}
static inline int64_t ky_times(int64_t a, int64_t b) {
  int64_t product;
  return ky_lacks(a, b) || __builtin_mul_overflow(a, b, &product) ? KY_NONE : product;
}
static inline int64_t ky_floordiv(int64_t a, int64_t b) {
  if (ky_lacks(a, b) || b == 0) return KY_NONE;
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}
static inline int64_t ky_max(int64_t a, int64_t b) { return ky_lacks(a, b) ? KY_NONE : a > b ? a : b; }
static inline int64_t ky_min(int64_t a, int64_t b) { return a < b ? a : b; } /* KY_NONE is the least there is */
/* The common size under NumPy's rule. */
static inline int64_t ky_broadcast(int64_t a, int64_t b) {
  return ky_lacks(a, b) ? KY_NONE : a == b || b == 1 ? a : a == 1 ? b : KY_NONE;
}
"""
_MOST = (1 << 63) - 1


def to_c(dim: Dim, names: Mapping[str, str]) -> str:
    """Return the C expression of a dim, `KY_NONE` where it has no value; `names` are those of the symbols' variables,
    `C_FUNCTIONS` what it may call.

    Example:
        >>> from kernelyard import dims
        >>> to_c(dims.parse("(h + 1) // 2 * 4"), {"h": "s[0]"})
        'ky_times(INT64_C(4), ky_floordiv(ky_plus(s[0], INT64_C(1)), INT64_C(2)))'
    """
    if isinstance(dim, int):
        return _integer(dim)

    def of_atom(atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return names[atom.name]
        return f"ky_{atom.name}({to_c(atom.left, names)}, {to_c(atom.right, names)})"

    terms: list[str] = []
    for monomial, coefficient in dim.terms:
        factors = [] if coefficient == 1 and monomial else [_integer(coefficient)]
        terms.append(reduce(lambda a, b: f"ky_times({a}, {b})", factors + [of_atom(atom) for atom in monomial]))
    return reduce(lambda a, b: f"ky_plus({a}, {b})", terms)


def _integer(value: int) -> str:
    if abs(value) > _MOST:
        return "KY_NONE"
    return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
