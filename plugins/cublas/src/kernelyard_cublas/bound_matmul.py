"""BoundMatmul: a problem on fixed memory, ready to run; calling it makes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernelyard_cublas.algorithms import Algorithms, make_timer
from kernelyard_cublas.descriptors import POINTERS, Descriptors
from kernelyard_cublas.lt_api import Addresses, Heuristic, LtApi, MatmulCall, Run
from kernelyard_cublas.problem import Problem
from kernelyard_cuda.driver_api import CudaDriver


class BoundMatmul:
    """A call of `cublasLtMatmul` on a device's stream.

    addresses: of the operands by role, and of "out". workspace: gives scratch memory of a size.
    """

    def __init__(
        self,
        api: LtApi,
        device: CudaDriver,
        problem: Problem,
        addresses: Mapping[str, int],
        workspace: Callable[[int], int],
    ) -> None:
        self._api = api
        self._device = device
        self._problem = problem
        self._addresses = dict(addresses)
        self._workspace = workspace
        self._descriptors = Descriptors(api, problem, addresses)
        self._heuristic: Heuristic | None = None
        self._run: Run | None = None

    def choose(self, algorithms: Algorithms, label: str, tune: bool) -> None:
        """Take the algorithm for the problem, and get ready.

        Raises: NoImplementationError.
        """
        self._device.enter()
        measure = make_timer(self._api, self._prepare, self._device.stream) if tune else None
        self._heuristic = algorithms.choose(self._api, label, self._problem, self._descriptors, measure)
        self._run = self._prepare(self._heuristic)

    def _prepare(self, heuristic: Heuristic) -> Run:
        at = self._addresses
        call = MatmulCall(
            self._descriptors.matmul,
            self._descriptors.layouts,
            Addresses(at["rhs"], at["lhs"], self._address_of_c(), at["out"]),
            self._problem.alpha,
            self._problem.beta,
            self._problem.scale_type,
            heuristic,
            self._workspace(heuristic.workspace) if heuristic.workspace else 0,
        )
        return self._api.prepare(call)

    def _address_of_c(self) -> int:
        """Return where C is, of which nothing is read without a residual: where D is; nowhere (0) where its layout is
        another, as it is beside a result of float8. The library takes C and D at one address for an operation in place,
        whose layouts must agree (cuBLAS documentation, "cublasLtMatmul"), and refuses it with INVALID_VALUE.
        """
        if "residual" in self._addresses:
            return self._addresses["residual"]
        return self._addresses["out"] if self._problem.c == self._problem.d else 0

    def move(self, roles: Sequence[str], address: int) -> None:
        """Rebind an operand to another address."""
        for role in roles:
            self._addresses[role] = address
            if role in POINTERS:
                self._descriptors.point(role, address)
        assert self._heuristic is not None
        self._run = self._prepare(self._heuristic)

    def __call__(self) -> None:
        """Start the matmul. Raises: LtError."""
        assert self._run is not None
        self._device.enter()
        self._run(self._device.stream)
