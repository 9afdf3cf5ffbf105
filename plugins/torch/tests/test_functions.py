"""Functions that models use beside the core operators, exported and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch.export import Dim  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch_agreement import export_and_check  # noqa: E402


def assigned(x: Any) -> Any:
    y = x.clone()
    y[:, 1:3] = 0
    y[0] = 1
    return y


def draw(*shape: int) -> Any:
    return torch.randn(shape)


def definite(count: int, size: int) -> Any:
    """Positive definite matrices, away from singular ones."""
    x = draw(count, size, size)
    return x @ x.mT + torch.eye(size)


def sampled_images(x: Any, grid: Any) -> list[Any]:
    ways = (("zeros", False), ("border", True), ("reflection", False), ("reflection", True))
    return [F.grid_sample(x, grid, "bicubic", padding, corners) for padding, corners in ways]


def sampled_volumes(x: Any, grid: Any) -> list[Any]:
    ways = (("zeros", True), ("border", False), ("reflection", True))
    modes = "bilinear", "nearest"
    return [F.grid_sample(x, grid, mode, padding, corners) for mode in modes for padding, corners in ways]


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "write a cache": (lambda c, k, p: c.index_copy(1, p, k), lambda: (draw(2, 8, 4), draw(2, 1, 4), torch.tensor([3]))),
    "shifts": (lambda x: (x << 2, x >> 1, x << x), lambda: (torch.tensor([0, 1, 5], dtype=torch.int32),)),
    "assign slices": (assigned, lambda: (draw(4, 5),)),
    "index two axes apart": (lambda x, i: x[i, :, i], lambda: (draw(4, 3, 4), torch.tensor([3, 1]))),
    "einsum": (lambda a, b: torch.einsum("bhqd,bhkd->bhqk", a, b), lambda: (draw(2, 3, 4, 5), draw(2, 3, 6, 5))),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), lambda: (draw(1, 8, 3, 3),)),
    "bicubic": (lambda x: F.interpolate(x, size=(9, 11), mode="bicubic"), lambda: (draw(1, 2, 5, 6),)),
    "uneven means": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), lambda: (draw(1, 2, 7, 5),)),
    "largest of planes": (lambda x: F.adaptive_max_pool2d(x, 1), lambda: (draw(1, 2, 7, 5),)),
    "largest of parts": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), lambda: (draw(1, 2, 9, 4),)),
    "largest of uneven parts": (
        lambda x: (
            *F.adaptive_max_pool2d(x, (5, 3), return_indices=True),
            *F.adaptive_max_pool2d(x[0], (3, 2), return_indices=True),
            F.adaptive_max_pool1d(x[:, 0], 6),
            *F.adaptive_max_pool3d(x[None], (1, 3, 2), return_indices=True),
        ),
        lambda: (draw(2, 9, 8, 4).mul(4).round(),),
    ),
    "fractional pools": (
        lambda x, s: (
            *F.fractional_max_pool2d(x, (2, 3), (4, 5), return_indices=True, _random_samples=s[..., :2]),
            F.fractional_max_pool2d(x[0], 2, 1, _random_samples=s[:1, :, :2]),
            *F.fractional_max_pool3d(x[None], 2, (3, 5, 4), return_indices=True, _random_samples=s[None, 0, :2]),
        ),
        lambda: (draw(2, 5, 9, 8), torch.rand(2, 5, 3)),
    ),
    "grid sample": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        lambda: (draw(1, 2, 5, 6), 0.5 * draw(1, 3, 4, 2)),
    ),
    "images sampled by a cubic kernel": (sampled_images, lambda: (draw(2, 3, 5, 6), draw(2, 3, 4, 2))),
    "sampled volumes": (sampled_volumes, lambda: (draw(2, 3, 4, 5, 6), draw(2, 2, 3, 4, 3))),
    "writing to places of all elements": (
        lambda x, i, v: (x.clone().put_(i, v), x.clone().put_(i % 3, v, accumulate=True), x.diagonal_scatter(v, 1)),
        lambda: (draw(3, 4), torch.tensor([7, 0, -1]), draw(3)),
    ),
    "leaky slopes by the mean": (lambda x: (F.rrelu(x), F.rrelu(x, 0.1, 0.2)), lambda: (draw(3, 4),)),
    "norms": (lambda x: (F.normalize(x), x.norm(dim=1), x.std(-1), x.logsumexp(1)), lambda: (draw(3, 4),)),
    "running": (lambda x: (x.cumsum(0), x.cumprod(1), x.roll(1, 0)), lambda: (draw(3, 4),)),
    "order": (lambda x: (x.argsort(1), x.topk(2, 0).values), lambda: (draw(3, 4),)),
    "stable order": (
        lambda x: (*x.sort(stable=True, dim=1), *x.sort(stable=True, dim=0, descending=True), x.msort()),
        lambda: (torch.tensor([[1.0, 0.0, -0.0, 3.0, 1.0], [2.0, 2.0, 7.0, -2.0, 2.0]]),),
    ),
    "rounding to digits": (lambda x: (x.round(decimals=2), (x * 99).round(decimals=-1)), lambda: (draw(3, 4),)),
    "extrema beside NaN": (
        lambda x, y: (x.fmax(y), y.fmin(x), x[:, 0].fmax(x[:, 0].int()), x[:, 0].int().fmin(y[0].int())),
        lambda: (torch.tensor([[1.0, math.nan, 3.0], [-2.0, 0.5, math.nan]]), torch.tensor([0.0, 7.0, math.nan])),
    ),
    "k-th values": (lambda x: (*x.kthvalue(3, 1), x.kthvalue(1, 0, keepdim=True).values), lambda: (draw(4, 9),)),
    "medians": (
        lambda x: (*x.median(1), *x.median(0, keepdim=True), x.median(), *x.nanmedian(1), x.nanmedian()),
        lambda: (torch.tensor([[3.0, 1.0, 2.0, 9.0], [4.0, math.nan, -1.0, 0.0], [7.0, 8.0, 5.0, 6.0]]),),
    ),
    "most frequent": (
        lambda x: (*x.mode(1), *x.mode(0, keepdim=True)),
        lambda: (torch.tensor([[3, 1, 3, 2, 1], [4, 4, 4, 0, 1], [3, 1, 2, 0, 7]]),),
    ),
    "counts": (
        lambda x, w: (x.bincount(), x.bincount(minlength=9), x.bincount(w), x.bincount(w.long())),
        lambda: (torch.tensor([3, 1, 3, 0, 6]), draw(5)),
    ),
    "repeated rows": (
        lambda x, r: (x.repeat_interleave(r, 0), x.repeat_interleave(r, 0, output_size=6), r.repeat_interleave(r)),
        lambda: (draw(4, 3), torch.tensor([2, 0, 3, 1])),
    ),
    "runs": (
        lambda x: (*x.unique_consecutive(True, True), *x.unique_consecutive(True, True, dim=1)),
        lambda: (torch.tensor([[3, 3, 1, 1, 3], [2, 2, 2, 2, 3]]),),
    ),
    "determinants": (
        lambda x: (x.det(), torch.linalg.det(x[0]), *torch.linalg.slogdet(x)),
        lambda: (torch.cat([draw(3, 4, 4), torch.ones(1, 4, 4)]),),
    ),
    "inverses": (
        lambda x: (x.inverse(), torch.linalg.inv_ex(x * torch.tensor([1.0, 0.0])[:, None, None]).info),
        lambda: (torch.tensor([[[0.0, 2.0], [1.0, 3.0]], [[1.0, 2.0], [2.0, 5.0]]]),),
    ),
    "Cholesky factors": (
        lambda x: (torch.linalg.cholesky(x), torch.linalg.cholesky(x, upper=True)),
        lambda: (definite(3, 4),),
    ),
    "sums of products": (
        lambda c, a, b: (torch.addbmm(c, a, b), torch.addbmm(c, a, b, beta=0, alpha=0.5)),
        lambda: (draw(4, 6), draw(3, 4, 5), draw(3, 5, 6)),
    ),
    "equations": (
        lambda a, b: (
            torch.linalg.solve(a, b),
            torch.linalg.solve(a[0], b),
            torch.linalg.solve(a[0], b[0, :, 0]),
            torch.linalg.solve(a, b.mT, left=False),
        ),
        lambda: (draw(3, 4, 4) + 3 * torch.eye(4), draw(3, 4, 2)),
    ),
    "running extrema": (
        lambda x: (*x.cummax(1), *x.cummin(0), x.logcumsumexp(1), x.logcumsumexp(0)),
        lambda: (
            torch.tensor([[1.0, 3.0, 3.0, -2.0, 3.0], [0.0, math.nan, 8.0, 1.0, 9.0], [-90.0, 0.0, 1.0, 2.0, 0]]),
        ),
    ),
    "histograms": (
        lambda x: (torch.histc(x, 5), torch.histc(x, 4, -1.0, 1.0), torch.histc(x.round(), 3, 0, 2)),
        lambda: (torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0, 0.49, 7.5, -0.2]),),
    ),
    "gamma functions": (
        lambda x, n: (x.lgamma(), x.double().lgamma(), n.lgamma().isinf(), (x / 0).lgamma().isinf()),
        lambda: (torch.tensor([0.5, 1.0, 2.0, 1.37, 7.9, 8.0, 19.0, 1e-9, -0.5, -3.7]), torch.arange(-2, 3)),
    ),
    "reduce into slices": (
        lambda x, i, s: tuple(
            x.index_reduce(0, i, s, how, include_self=own)
            for how in ("prod", "mean", "amax", "amin")
            for own in (True, False)
        ),
        lambda: (draw(4, 3), torch.tensor([2, 0, 2]), draw(3, 3)),
    ),
    "bilinear": (lambda a, b, w, c: F.bilinear(a, b, w, c), lambda: (draw(5, 3), draw(5, 4), draw(2, 3, 4), draw(2))),
    "angles": (lambda x: x.angle(), lambda: (torch.tensor([1.0, -2.0, 0.0, -0.0, math.nan, -3.0]),)),
    "products of groups": (
        lambda x, w, ends: F.grouped_mm(x.bfloat16(), w.bfloat16().transpose(1, 2), offs=ends).float(),
        lambda: (draw(6, 8).round(), draw(3, 8, 8).round(), torch.tensor([2, 2, 6], dtype=torch.int32)),
    ),
    "places in a sorted sequence": (
        lambda s, x: (torch.searchsorted(s, x), torch.searchsorted(s[0], x, right=True, out_int32=True)),
        lambda: (torch.tensor([[0.0, 1.0, 1.0, 2.0, 5.0]] * 2), torch.tensor([[1.0, -1.0, 9.0], [2.0, 1.5, 5.0]])),
    ),
    "bags": (
        lambda i, o, t: (
            F.embedding_bag(i, t, o),
            F.embedding_bag(i, t, o, mode="sum"),
            F.embedding_bag(i, t, o, mode="max"),
        ),
        lambda: (torch.tensor([1, 2, 4, 3, 0]), torch.tensor([0, 2, 2]), draw(6, 3)),
    ),
    "pooled images whose channels lie last": (
        lambda x: F.adaptive_avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1).flatten(1),
        lambda: (draw(2, 3, 4, 4),),
    ),
    "indices of triangles": (
        lambda x: (x[torch.triu_indices(3, 4).unbind()], torch.ldexp(x, torch.tensor(3))),
        lambda: (draw(3, 4),),
    ),
    "overlapping views": (lambda x: x.as_strided((3, 3), (2, 1), 1), lambda: (draw(3, 4),)),
    "losses": (lambda x, y: (F.cross_entropy(x, y), F.one_hot(y, 4)), lambda: (draw(3, 4), torch.tensor([1, 2, 0]))),
    "masked select": (lambda x: x.masked_select(x > 0), lambda: (draw(3, 4),)),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), lambda: (draw(7),)),
    "grids": (lambda x: torch.meshgrid(x, x, indexing="ij"), lambda: (draw(3),)),
    "windows": (lambda x: F.unfold(x, 3, padding=1), lambda: (draw(1, 2, 5, 6),)),
}


def rotated(x: Any) -> Any:
    """Rotary embedding by complex numbers."""
    angles = torch.outer(torch.arange(x.shape[1]), 10.0 ** -torch.arange(2))
    rotated = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(rotated).flatten(2)


def angles(x: Any) -> Any:
    zeros = torch.tensor([0.0, 0.0, -0.0, -0.0]), torch.tensor([0.0, -0.0, 0.0, -0.0])
    angle = torch.complex(*zeros).angle() + 0 * x
    return angle, torch.copysign(torch.ones(4), torch.complex(x, zeros[1]).angle())


def written(x: Any, y: Any) -> Any:
    z = torch.complex(x, y)
    whole = torch.zeros_like(z)
    whole[:, 1:3] = z[:, :2]
    whole[0] = x[0]
    return torch.view_as_real(whole), torch.view_as_real(whole.new_zeros(2) + z[0, :2].clone().copy_(z[1, 1]))


def arithmetic(x: Any, y: Any) -> Any:
    z, w = torch.complex(x, y), torch.complex(y, x * y)
    parts = ((z + w) * 2, z - 1, z * w / (w + 2), z.conj() @ w.T, torch.cat([z, x], 1)[:, 1:3], 1j * z)
    return [torch.view_as_real(part.resolve_conj()) for part in parts], z.abs(), z.angle(), w.real, w.imag


def spectra(x: Any) -> Any:
    half, whole = torch.fft.rfft(x), torch.fft.fft2(x, norm="ortho")
    windows = torch.stft(x, 6, 2, window=torch.hann_window(6), return_complex=True)
    back = torch.fft.irfft(half, x.shape[1]), torch.fft.ifft2(whole, norm="ortho").real, torch.fft.irfft(half, 7)
    return *back, windows.abs().square(), torch.view_as_real(half), whole.real


def of_complex_numbers(x: Any, y: Any) -> Any:
    z, w = torch.complex(x, y), torch.complex(y, x * y)
    functions = ("exp", "log", "sin", "cos", "sinh", "cosh", "tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "sgn")
    parts = [getattr(z, name)() for name in functions]
    parts += [
        z**2,
        z**-1,
        z**w,
        2**z,
        (z * 0) ** w,
        z.prod(1),
        z.cumsum(1),
        z.tril(),
        torch.where(x > 0, z, w),
        z.sum(),
    ]
    parts += [torch.addmm(z @ w.T, z, w.T, beta=2, alpha=1j), F.linear(z, w), torch.add(z, 2j, alpha=3j), z.roll(1, 0)]
    return [torch.view_as_real(part.resolve_conj()) for part in parts], z == w, z != w, z.isnan(), z.isinf(), z.var(1)


def placed(x: Any, y: Any, places: Any) -> Any:
    z = torch.complex(x, y)
    z[places] = z[places] * 2j + 1
    z[z.abs() > 1] = 0
    z[:, 0] = 1j
    z[::2] *= torch.ones_like(z[::2]) + 1
    z = z.index_add(0, places, z[places]).scatter_add(0, places[None], z[:1, :2])
    return torch.view_as_real(z.masked_fill(x > 1, 3j) + torch.full_like(z, 1j))


FUNCTIONS |= {
    "functions of complex numbers": (of_complex_numbers, lambda: (draw(3, 4), draw(3, 4))),
    "writing to places of complex tensors": (placed, lambda: (draw(4, 4), draw(4, 4), torch.tensor([2, 0]))),
    "spectra of long sizes": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, 1050), lambda: (draw(2, 1050),)),
    "frequencies": (lambda x: (torch.fft.fftfreq(5, 0.5) + x, torch.fft.rfftfreq(8) * x), lambda: (draw(5),)),
    "rotary": (rotated, lambda: (draw(2, 3, 4),)),
    "complex arithmetic": (arithmetic, lambda: (draw(3, 4), draw(3, 4))),
    "writing to complex tensors": (written, lambda: (draw(3, 4), draw(3, 4))),
    "signs of angles": (angles, lambda: (torch.tensor([1.0, 2.0, -1.0, -2.0]),)),
    "spectra of even sizes": (spectra, lambda: (draw(3, 8),)),
    "spectra of odd sizes": (spectra, lambda: (draw(3, 9),)),
}


def antialiased(x: Any) -> list[Any]:
    smaller, larger = {"size": (3, 9)}, {"scale_factor": (1.5, 0.4)}
    return [
        F.interpolate(x, mode=mode, antialias=True, align_corners=corners, **sizes)
        for mode in ("bilinear", "bicubic")
        for corners in (False, True)
        for sizes in (smaller, larger)
    ]


def angles_of_real_frequencies(x: Any) -> Any:
    """The first and the last frequency are real numbers, whose angles are 0 or pi, not -pi."""
    return torch.fft.rfft(x).angle()[:, [0, -1]]


FUNCTIONS |= {
    "antialiased images": (antialiased, lambda: (draw(2, 3, 8, 7),)),
    "angles of real frequencies": (angles_of_real_frequencies, lambda: (draw(6, 16),)),
    "hypotenuses": (lambda x, y: torch.hypot(x, y) + torch.hypot(x * 1e25, y), lambda: (draw(3, 4), draw(3, 4))),
}

SIZES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "merge": (lambda x: x.reshape(x.shape[0] * 2, -1), (0,)),
    "overlapping views": (lambda x: x.as_strided((x.shape[0], 3, 4), (x.shape[1], 2, 1)) * 2, (0,)),
    "pad to a length": (lambda x: F.pad(x, (0, 16 - x.shape[1])), (1,)),
    "causal mask": (lambda x: torch.full((x.shape[1], x.shape[1]), -1.0).triu(1) + x.sum(), (1,)),
    "numbers of sizes": (lambda x: x / x.shape[1] ** 0.5 + x.shape[0] / x.shape[1], (0, 1)),
    "running extrema": (lambda x: (*x.cummax(1), *x.cummin(0), x.logcumsumexp(1)), (0, 1)),
    "medians": (lambda x: (*x.median(1), x.nanmedian(0).values), (0, 1)),
    "order": (lambda x: (x.sort(1).values, x.argsort(0, descending=True), x.topk(x.shape[0] // 2, 1)[0]), (0, 1)),
    "unfixed pooled images whose channels lie last": (
        lambda x: F.adaptive_avg_pool2d(
            x[:, None, None].expand(-1, 4, 4, -1).contiguous().permute(0, 3, 1, 2), 1
        ).flatten(1),
        (0,),
    ),
    "uneven means": (lambda x: F.adaptive_avg_pool1d(x[None], 3), (0, 1)),
    "largest of uneven parts": (lambda x: F.adaptive_max_pool2d(x[None], (3, 2)), (0, 1)),
    "steps": (lambda x: (torch.slice_scatter(x, x[::2] * 2, 0, 0, None, 2), x.unfold(1, 3, 1)), (0, 1)),
    "falling numbers": (lambda x: torch.arange(x.shape[1], -x.shape[0], -1.0) / 2, (0, 1)),
    "steps of one and a half": (lambda x: torch.arange(0, x.shape[1], 1.5) * 2, (1,)),
    "scaled images": (lambda x: F.interpolate(x[None, None], scale_factor=(0.5, 2.0), mode="bilinear"), (0, 1)),
    "triangles": (lambda x: x.tril(x.shape[1] - 6), (0, 1)),
    "pooled": (lambda x: F.avg_pool1d(x[None], 2).repeat(1, 2, x.shape[0]), (0, 1)),
}


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


@pytest.mark.parametrize("normalization", ["backward", "ortho", "forward"])
def test_spectra_of_open_sizes(normalization: str, graphs: list[Any]) -> None:
    def function(x: Any) -> Any:
        half = torch.fft.rfft(x, norm=normalization)
        whole = torch.fft.fftn(x, norm=normalization)
        return half, torch.fft.irfft(half, x.shape[1], norm=normalization), torch.fft.ifft(whole, norm=normalization)

    compiled = torch.compile(function, backend="kernelyard", dynamic=True)
    for shape in ((3, 8), (4, 9), (2, 12)):
        x = draw(*shape)
        for found, expected in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(graphs) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    exe = export_and_check(Function(function), *inputs())
    assert "reference" not in exe.report.coverage


@pytest.mark.parametrize("name", SIZES)
def test_functions_of_sizes(name: str) -> None:
    function, axes = SIZES[name]
    sizes = {axis: Dim(f"size_{axis}", min=4, max=15) for axis in axes}
    other = tuple(5 if axis in axes else size for axis, size in enumerate((6, 8)))
    export_and_check(Function(function), draw(6, 8), dynamic_shapes=((sizes,),), others=[(draw(*other),)])
