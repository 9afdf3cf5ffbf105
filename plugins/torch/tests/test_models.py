"""Models that people use, by both routes: first that compiled code ran all of each, then that the numbers are PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import kernelyard as ky
from kernelyard.errors import PerformanceWarning
from kernelyard.testing import assert_offloaded

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch_agreement import check_close  # noqa: E402
from torch_models import MODELS, Inputs, Model  # noqa: E402

from kernelyard_torch.compiled_graph import CompiledGraph  # noqa: E402

SIZES, OTHER_SIZES = (4, 7), ((2, 11), (5, 9))
# Named, not "auto": there our own kernels are taken where they are the faster ones, which depends on the processor.
LIBRARIES = ("dnnl", "native-cpu")
pytestmark = pytest.mark.filterwarnings(f"error::{PerformanceWarning.__module__}.{PerformanceWarning.__qualname__}")


@pytest.fixture(params=["static", "dynamic"])
def dynamic(request: pytest.FixtureRequest) -> bool:
    return request.param == "dynamic"


def check_placement(executables: Sequence[ky.Executable], model: Model, backends: Sequence[str]) -> None:
    for exe in executables:
        assert "reference" not in exe.report.coverage
    if backends:
        assert any(region.pattern == model.pattern for exe in executables for region in exe.report.regions)
        assert_offloaded(executables[0], "dnnl")


def all_inputs(model: Model, dynamic: bool) -> list[Inputs]:
    """What the model is called with: several sizes where sizes are open."""
    return [model.inputs(*sizes) for sizes in ((SIZES, *OTHER_SIZES) if dynamic else (SIZES,))]


@pytest.mark.parametrize("name", MODELS)
def test_export(name: str, dynamic: bool) -> None:
    case = MODELS[name]
    model, calls = case.with_random_weights(), all_inputs(case, dynamic)
    backends = LIBRARIES if dynamic else ()
    program = torch.export.export(model, (), calls[0], dynamic_shapes=case.dynamic if dynamic else None)
    exe = ky.compile(program, backends=backends)
    check_placement([exe], case, backends)
    for given in calls:
        with torch.no_grad():
            expected = model(**given)
        check_close([result.numpy() for result in exe.run(given).values()], expected)


@pytest.mark.parametrize("name", MODELS)
def test_compile(name: str, dynamic: bool, graphs: list[CompiledGraph]) -> None:
    case = MODELS[name]
    model, calls = case.with_random_weights(), all_inputs(case, dynamic)
    backends = () if dynamic else LIBRARIES
    compiled = torch.compile(
        model, backend="kernelyard", fullgraph=True, dynamic=dynamic, options={"backends": backends}
    )
    for given in calls:
        with torch.no_grad():
            check_close(compiled(**given), model(**given))
    check_placement([exe for graph in graphs if (exe := graph.executable)], case, backends)
    assert len(graphs) == 1


def test_numbers_that_are_small_count() -> None:
    with pytest.raises(AssertionError):
        check_close([torch.zeros(3)], [torch.full((3,), 1e-6)])
