"""Special functions and divisors, exported and compiled: generated code runs all of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch.export import Dim  # noqa: E402
from torch_agreement import export_and_check  # noqa: E402

from kernelyard_torch.special import bessel, error, gamma, modified_bessel  # noqa: E402

S = torch.special
WIDE = torch.cat([torch.linspace(-12, 12, 47), torch.tensor([0.0, 1e-9, 60.0, math.inf, -math.inf, math.nan])])
POLYNOMIALS = ("chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l")
POLYNOMIALS += ("legendre_polynomial_p", "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_v")
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "bessel": lambda x: (S.bessel_j0(x), S.bessel_j1(x), S.bessel_y0(x), S.bessel_y1(x), S.spherical_bessel_j0(x)),
    "modified bessel, first kind": lambda x: (torch.i0(x / 2), S.i1(x / 2), S.modified_bessel_i0(x / 2), S.i0e(x)),
    "modified bessel, first kind, odd": lambda x: (S.modified_bessel_i1(x / 2), S.i1e(x)),
    "modified bessel, second kind": lambda x: (S.modified_bessel_k0(x), S.modified_bessel_k1(x)),
    "scaled, second kind": lambda x: (S.scaled_modified_bessel_k0(x), S.scaled_modified_bessel_k1(x)),
    "error": lambda x: (x.erfc(), S.erfcx(x / 2), S.log_ndtr(x), S.ndtr(x)),
    "inverses": lambda x: (torch.erfinv(x / 12), S.ndtri(x / 24 + 0.5)),
    "gamma": lambda x: (torch.digamma(x + 0.3), torch.polygamma(0, x + 0.3), torch.polygamma(1, x + 0.3)),
    "polynomials": lambda x: tuple(getattr(S, name)(x[:-3], n) for name in POLYNOMIALS for n in (-1, 0, 1, 2, 5)),
    "products with logarithms": lambda x: (S.entr(x), S.xlog1py(x.abs(), x.abs()), torch.mvlgamma(x.abs() + 3, 3)),
}


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_functions(name: str, dtype: str) -> None:
    exe = export_and_check(Function(FUNCTIONS[name]), WIDE.to(getattr(torch, dtype)))
    assert "reference" not in exe.report.coverage


@pytest.mark.parametrize("name", ["erfc", "digamma", "i0"])
def test_special_functions_of_integers(name: str) -> None:
    export_and_check(Function(getattr(torch, name)), torch.arange(1, 9))


# Digits that PyTorch itself lacks, from tables: Abramowitz and Stegun, Handbook of Mathematical Functions.
TABLES: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "J0(1)": (bessel.j0, 1.0, 0.765197686557967),
    "J0(10)": (bessel.j0, 10.0, -0.245935764451348),
    "J1(10)": (bessel.j1, 10.0, 0.0434727461688614),
    "Y0(10)": (bessel.y0, 10.0, 0.0556711672835994),
    "Y1(1)": (bessel.y1, 1.0, -0.781212821300289),
    "I0(1)": (modified_bessel.i0, 1.0, 1.26606587775201),
    "K1(1)": (modified_bessel.k1, 1.0, 0.601907230197235),
    "erfc(1)": (error.erfc, 1.0, 0.157299207050285),
    "erfinv(1/2)": (error.erfinv, 0.5, 0.476936276204470),
    "psi(1)": (gamma.digamma, 1.0, -0.577215664901533),
    "psi'(1)": (gamma.trigamma, 1.0, math.pi**2 / 6),
}


@pytest.mark.parametrize("name", TABLES)
def test_digits_of_tables(name: str) -> None:
    function, x, expected = TABLES[name]
    assert function(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(expected, rel=4e-14)


# --- divisors ---------------------------------------------------------------------------------------------------------
NUMBERS = torch.tensor([12, 0, -18, 7, 1 << 40, 0, 233]), torch.tensor([18, 5, 12, 0, 1 << 33, 0, -144])


def divisors(a: Any, b: Any) -> Any:
    return torch.gcd(a, b), torch.lcm(a, b), torch.gcd(a[:, None], b)


@pytest.mark.parametrize("dtypes", [("int64", "int64"), ("int32", "int16"), ("uint8", "uint8")])
def test_divisors(dtypes: tuple[str, str]) -> None:
    a, b = (numbers.to(getattr(torch, dtype)) for numbers, dtype in zip(NUMBERS, dtypes, strict=True))
    exe = export_and_check(Function(divisors), a, b)
    assert "reference" not in exe.report.coverage


def test_divisors_of_open_size() -> None:
    size = Dim("size", min=1, max=99)
    others = [tuple(numbers[:3] for numbers in NUMBERS)]
    export_and_check(Function(torch.gcd), *NUMBERS, dynamic_shapes=(({0: size}, {0: size}),), others=others)


def test_divisors_in_a_captured_graph(graphs: list[Any]) -> None:
    found = torch.compile(Function(divisors), backend="kernelyard")(*NUMBERS)
    assert graphs
    assert graphs[0].executable is not None
    for each, expected in zip(found, divisors(*NUMBERS), strict=True):
        assert torch.equal(each, expected)
