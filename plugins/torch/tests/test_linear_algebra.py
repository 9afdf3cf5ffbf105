"""Linear algebra of small matrices, exported and compiled; what is refused of others, and where eager mode raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch_agreement import export_and_check  # noqa: E402

import kernelyard as ky  # noqa: E402
from kernelyard.errors import PerformanceWarning, UnsupportedOperatorError  # noqa: E402


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


def draw(*shape: int) -> Any:
    return torch.randn(shape)


def definite(count: int, size: int) -> Any:
    """Positive definite matrices, away from singular ones."""
    x = draw(count, size, size)
    return x @ x.mT + torch.eye(size)


def solved_triangles(x: Any, b: Any) -> Any:
    """Solve by one side of matrices whose other side counts for nothing."""
    solve = torch.linalg.solve_triangular
    lower = (
        solve(x, b, upper=False),
        solve(x[0], b, upper=False, unitriangular=True),
        solve(x, b.mT, upper=True, left=False),
    )
    factors = torch.linalg.cholesky(x), torch.linalg.cholesky(x, upper=True)
    inverses = [torch.cholesky_inverse(f, upper=f is factors[1]) for f in factors]
    return *lower, *inverses, b.cholesky_solve(factors[0] + x.triu(1)), b[0].cholesky_solve(factors[1], upper=True)


def test_equations_of_triangles() -> None:
    exe = export_and_check(Function(solved_triangles), definite(3, 4), draw(3, 4, 2))
    assert "reference" not in exe.report.coverage


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.linalg.eigvalsh, "_linalg_eigh"),
        (torch.linalg.svdvals, "_linalg_svd"),
        (torch.linalg.qr, "linalg_qr"),
        (torch.linalg.pinv, "linalg_pinv"),
        (lambda x: torch.linalg.solve_triangular(x, x, upper=True), "linalg_solve_triangular"),
    ],
)
def test_what_has_no_operator_is_refused_by_name_and_left_to_eager_mode(
    function: Callable[..., Any], name: str, graphs: list[Any]
) -> None:
    def surrounded(x: Any) -> Any:
        y = function((x @ x.mT).tanh() * 2 + 1)
        return (y if isinstance(y, torch.Tensor) else y[1]).abs().exp().log1p().sum(-1) * 2

    x = draw(3, 20, 20)
    with pytest.raises(UnsupportedOperatorError, match=name):
        ky.compile(torch.export.export(Function(surrounded), (x,)))
    with pytest.warns(PerformanceWarning, match=name):
        found = torch.compile(surrounded, backend="kernelyard")(x)
    assert graphs
    torch.testing.assert_close(found, surrounded(x), rtol=1e-3, atol=1e-3)


def test_determinants_of_large_matrices() -> None:
    with pytest.warns(PerformanceWarning, match="det"):
        export_and_check(Function(lambda x: (x.det(), torch.linalg.det(x[0]))), draw(3, 20, 20) / 5)


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        torch.linalg.cholesky,
        lambda x: torch.linalg.solve(x, x[0, :, :2]),
        lambda x: torch.linalg.solve(x, x[:, 0]),
    ],
)
def test_matrices_at_which_eager_mode_raises_give_nan(function: Callable[..., Any]) -> None:
    """The others of a batch are what they are alone."""
    x = torch.stack([torch.eye(3), torch.ones(3, 3) * -1, 2 * torch.eye(3)])
    with pytest.raises(RuntimeError):
        function(x)
    exe = ky.compile(torch.export.export(Function(function), (torch.eye(3).expand(3, 3, 3),)), backends=[])
    result = torch.as_tensor(exe(x).numpy())
    assert result[1].isnan().all()
    regular = x[[0, 2]]
    torch.testing.assert_close(result[[0, 2]], function(regular))


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_cholesky_factors_by_their_old_name() -> None:
    export_and_check(Function(lambda x: x.cholesky()), definite(2, 3))


def test_inverses_of_large_matrices_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="20 rows"):
        export_and_check(Function(torch.linalg.inv), draw(20, 20))
