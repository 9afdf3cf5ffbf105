"""The runtime half: graphs of kernel nodes, and the kernels that were compiled for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from kernelyard.runtime.api import (
    BindContext,
    BoundCall,
    BoundTensor,
    Fields,
    JSONGraph,
    JSONNode,
    check_schema,
    corrupted,
    read_json,
)
from kernelyard_cuda.driver_api import CudaDriver, Grid, Launch, LoadedKernels, require_cuda
from kernelyard_cuda.kernel_sequence import KernelSequence
from kernelyard_cutlass import tune
from kernelyard_cutlass.code import Code, pack, unpack
from kernelyard_cutlass.emulation import EmulatedLaunch
from kernelyard_cutlass.gpus import gpu_of
from kernelyard_cutlass.kernels import Kernel, entry_of
from kernelyard_cutlass.launches import PLANS, Call, Choice, PlannedLaunch
from kernelyard_cutlass.tiles import rank_tiles

KIND = "cutlass"


class CutlassModule(KernelSequence):
    """Composites as calls of CUTLASS kernels."""

    kind: ClassVar[str] = KIND

    def __init__(self, graphs: Sequence[JSONGraph], constants: Mapping[str, np.ndarray], codes: Sequence[Code]) -> None:
        super().__init__(graphs, constants)
        self.codes = {code.kernel: code for code in codes}
        self._compiled = list(self.codes)
        self._loaded: dict[tuple[CudaDriver, Kernel], LoadedKernels] = {}
        self._lock = Lock()
        for symbol, node in self.kernels.items():
            self._check(f"graph {symbol}", node)

    def _check(self, where: str, node: JSONNode) -> None:
        """Check that the kind of kernel is known, and that its kernels are in the module."""
        if node.op not in PLANS:
            raise corrupted(where, node.op, ", ".join(PLANS))
        kernels = node.attrs.get("kernels")
        numbers = kernels.values() if isinstance(kernels, dict) else ()
        if not numbers or not all(
            isinstance(some, list) and set(some) <= {*range(len(self.codes))} for some in numbers
        ):
            raise corrupted(where, kernels, "numbers of kernels")

    @classmethod
    def load_from_bytes(cls, data: bytes, constants: Mapping[str, np.ndarray]) -> CutlassModule:
        """Return the module that `save_to_bytes` wrote.

        Raises: ArtifactCorruptedError, ArtifactVersionError.
        """
        graphs, codes = unpack(data)
        fields = Fields(read_json(graphs, f"{KIND} module"), f"{KIND} module")
        check_schema(fields)
        return cls(fields.each("graphs", JSONGraph.from_json), constants, codes)

    def save_to_bytes(self) -> bytes:
        return pack(super().save_to_bytes(), list(self.codes.values()))

    @property
    def needs(self) -> str:
        """See `RuntimeModule.needs`."""
        archs = dict.fromkeys(arch for code in self.codes.values() for arch in code.cubins)
        return f"a GPU of {', '.join(archs)}, or the emulator" if archs else "the CUDA emulator: nothing was compiled"

    def inspect(self) -> str:
        """Describe the graphs, and the kernels by index."""
        lines = [super().inspect(), ""]
        for number, (kernel, code) in enumerate(self.codes.items()):
            archs = ", ".join(code.cubins) or "not compiled"
            lines.append(
                f"kernel {number}: {kernel} ({archs}; {code.threads} threads, {code.shared_nbytes} bytes shared)"
            )
        return "\n".join(lines)

    def build_kernel(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Return the launches of a composite's kernels. Raises: DeviceError, ExecutionError."""
        driver = require_cuda(context.device, graph.symbol)
        node, output = self.kernels[graph.symbol], args[-1]
        if not output.nbytes:
            return BoundCall([])
        tensors = {role: self.operand(graph, source, args, driver) for role, (source, _) in node.inputs}
        planned = self._launches(self._call(node, tensors, output, context), driver)
        steps = [self._step(launch, driver) for launch in planned]
        return BoundCall([*steps], [self, context], _movers(planned, steps, args))

    def _call(
        self, node: JSONNode, tensors: Mapping[str, BoundTensor], output: BoundTensor, context: BindContext
    ) -> tuple[Callable[[Call], Any], Call]:
        kernels = {role: [self._compiled[n] for n in numbers] for role, numbers in node.attrs["kernels"].items()}
        attrs = Fields(dict(node.attrs), f"a kernel {node.op}")
        return PLANS[node.op], Call(attrs, tensors, output, kernels, context.workspace)

    def _launches(self, planned: tuple[Callable[[Call], Any], Call], driver: CudaDriver) -> list[PlannedLaunch]:
        plan, call = planned
        found: list[PlannedLaunch] = []
        for step in plan(call):
            found += self._choose(step, driver, call.attrs.any("tune") is True) if isinstance(step, Choice) else [step]
        return found

    def _choose(self, choice: Choice, driver: CudaDriver, is_tuned: bool) -> list[PlannedLaunch]:
        kernels = {kernel.tile: kernel for kernel in choice.kernels}
        first = choice.kernels[0]
        if is_tuned and len(kernels) > 1 and not driver.is_emulator:
            return choice.launches(self._measure(choice, driver))
        gpu, itemsize = gpu_of(driver.capability), choice.problem.itemsize
        fitting = [tile for tile in kernels if tile.shared_nbytes(itemsize) <= gpu.shared_nbytes]
        return choice.launches(kernels[rank_tiles(fitting or list(kernels), choice.problem, first.math, gpu)[0]])

    def _measure(self, choice: Choice, driver: CudaDriver) -> Any:
        key = tune.key_of(choice.problem, choice.kernels, f"{driver.kind} {driver.capability}")
        names = [str(kernel.tile) for kernel in choice.kernels]

        def prepare(number: int) -> Callable[[], None]:
            steps = [self._step(launch, driver) for launch in choice.launches(choice.kernels[number])]

            def run() -> None:
                for step in steps:
                    step()

            return run

        return choice.kernels[tune.fastest(key, names, prepare, driver.synchronize)]

    def _step(self, launch: PlannedLaunch, driver: CudaDriver) -> Launch:
        if driver.is_emulator:
            return EmulatedLaunch(launch)
        code = self.codes[launch.kernel]
        lanes = launch.lanes or code.threads
        grid = Grid(launch.blocks, (lanes, code.threads // lanes if lanes else 1, 1), code.shared_nbytes)
        return self._load(code, driver).prepare(entry_of(launch.kernel), grid, launch.arguments)

    def _load(self, code: Code, driver: CudaDriver) -> LoadedKernels:
        with self._lock:
            if (driver, code.kernel) not in self._loaded:
                self._loaded[driver, code.kernel] = driver.load(code.image)
            return self._loaded[driver, code.kernel]


def _movers(
    planned: Sequence[PlannedLaunch], steps: Sequence[Launch], args: Sequence[BoundTensor]
) -> dict[int, Callable[[int], None]]:
    """Return for each argument what moves it, in all launches that get its address, or one inside of it."""

    def mover(arg: BoundTensor) -> Callable[[int], None]:
        places = [
            (step, place, given.value - arg.address)
            for launch, step in zip(planned, steps, strict=True)
            for place, given in enumerate(launch.arguments)
            if given.nbytes and arg.address <= given.value < arg.address + arg.nbytes
        ]

        def move(address: int) -> None:
            for step, place, offset in places:
                step.move(place, address + offset)

        return move

    return {number: mover(arg) for number, arg in enumerate(args)}


load = CutlassModule.load_from_bytes
