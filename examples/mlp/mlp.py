"""A multilayer perceptron for digits of 28 x 28 pixels, written with `kernelyard.nn`, compiled and run.

python examples/mlp/mlp.py [--backends dnnl] [--by-hand] [--save FILE]
"""

from __future__ import annotations

import argparse

import numpy as np

import kernelyard as ky
from kernelyard import dims, nn
from kernelyard.placement.partition import partition_for
from kernelyard.transform import RunCodegen

PIXELS, HIDDEN, DIGITS = 784, 128, 10
SPEC = {"forward": {"x": nn.spec.Tensor(["n", PIXELS], "float32")}}


class MLP(nn.Module):
    """784 pixels to 128 values to 10 scores."""

    def __init__(self) -> None:
        self.fc1 = nn.Linear(PIXELS, HIDDEN)
        self.relu1 = nn.ReLU()
        self.fc2 = nn.Linear(HIDDEN, DIGITS)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.fc2(self.relu1(self.fc1(x)))


def random_model(seed: int = 0) -> MLP:
    """Return the model with random weights, untrained."""
    model = MLP()
    random = np.random.default_rng(seed)
    shapes = {name: [dims.evaluate(dim, {}) for dim in each.shape] for name, each in model.named_parameters()}
    model.load_state_dict({name: random.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()})
    return model


def in_numpy(model: MLP, x: np.ndarray) -> np.ndarray:
    """Compute the model with NumPy."""
    state = model.state_dict()
    hidden = np.maximum(x @ state["fc1.weight"].T + state["fc1.bias"], 0)
    return hidden @ state["fc2.weight"].T + state["fc2.bias"]


def compiled_by_hand(model: MLP, backends: list[str]) -> ky.Executable:
    """Compile as `ky.compile` does, a stage at a time; any of them can be printed, changed or left out."""
    module, _ = model.export({name: nn.MethodSpec(inputs, param_mode="none") for name, inputs in SPEC.items()})
    for name in backends:
        module = partition_for(name, module)
        module = RunCodegen()(module)
    return ky.compile(module, backends=[])


def main(arguments: list[str] | None = None) -> int:
    """Compile and run; exit with 1 if the scores are not those of NumPy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="", help="backends in order of preference; none: generated code alone")
    parser.add_argument("--by-hand", action="store_true", help="partition and run the codegen as passes of their own")
    parser.add_argument("--save", help="write the compiled model to this file")
    options = parser.parse_args(arguments)
    model = random_model()
    backends = [name for name in options.backends.split(",") if name]
    if options.by_hand:
        exe = compiled_by_hand(model, backends)
    else:
        exe = ky.compile(nn.ModuleSpec(model, SPEC), backends=backends)
    print(exe.report.summary)
    if options.save:
        exe.save(options.save)
    right = True
    for batch in (1, 5):
        x = np.random.default_rng(batch).random((batch, PIXELS), np.float32)
        scores = np.asarray(exe(x))
        right = right and np.allclose(scores, in_numpy(model, x), rtol=1e-4, atol=1e-5)
        print(f"{batch} pictures: digits {scores.argmax(1).tolist()}")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
