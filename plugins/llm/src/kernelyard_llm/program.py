"""The program of a language model: four functions over symbolic lengths, compiled once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelyard import nn
from kernelyard.errors import ShapeError, TypeInferenceError
from kernelyard_llm.configuration import DECODE, DECODE_BATCH, EXTEND, HEAD, PAGE, ModelConfig
from kernelyard_llm.description import KEY
from kernelyard_llm.errors import ModelFileError
from kernelyard_llm.network import Decoder, Weights
from kernelyard_llm.stored_weights import DEFAULT_PRODUCTS, Products

if TYPE_CHECKING:
    from kernelyard.plugins.api import IRModule
    from kernelyard_llm.source import Source


def model_spec(config: ModelConfig, weights: Weights, products: Products) -> nn.ModuleSpec:
    """Return the network with the inputs of its functions: any number of new tokens, any number of cached rows."""
    methods = {
        EXTEND: _inputs(config, "batch", "n"),
        DECODE: _inputs(config, 1, 1),
        DECODE_BATCH: _inputs(config, "batch", 1),
        HEAD: {"hidden": nn.spec.Tensor(["m", config.width])},
    }
    return nn.ModuleSpec(Decoder(config, weights, products), methods)


def _inputs(config: ModelConfig, batch: int | str, n: int | str) -> dict[str, Any]:
    """Return the inputs of a function over the cache, by name."""
    rows = [config.kv_heads, "pages", PAGE]
    shapes = {part: rows if part.endswith("scales") else [*rows, config.head_size] for part in config.cache_parts}
    return {
        "tokens": nn.spec.Tensor([batch, n], "int64"),
        "lengths": nn.spec.Tensor([batch], "int64"),
        "tables": nn.spec.Tensor([batch, "columns"], "int32"),
        **{
            part: nn.spec.Tuple(
                [nn.spec.Tensor(shape, "float32" if part.endswith("scales") else config.cache_dtype)]
                * len(config.layers)
            )
            for part, shape in shapes.items()
        },
    }


def to_ir(source: Source, products: Products = DEFAULT_PRODUCTS) -> IRModule:
    """Return the module of a network; its metadata have what a program does not need: tokenizer and template.

    products: how quantized weights are multiplied, see `kernelyard_llm.load`.

    Raises: ModelFileError for weights that the network lacks, or that have other sizes than it.
    """
    try:
        module = model_spec(source.description.config, source.weights, products).to_ir()
    except (TypeInferenceError, ShapeError) as error:
        raise ModelFileError("the weights do not fit the configuration", found=error.message) from error
    return module.with_attrs(metadata={KEY: source.description.to_json()})
