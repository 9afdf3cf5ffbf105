"""The program of a language model: four functions over symbolic lengths, compiled once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard import nn
from kernelyard.errors import ShapeError, TypeInferenceError
from kernelyard_llm.configuration import DECODE, EXTEND, HEAD, PAGE, PREFILL, ModelConfig
from kernelyard_llm.description import KEY
from kernelyard_llm.errors import ModelFileError
from kernelyard_llm.network import Decoder, Weights

if TYPE_CHECKING:
    from kernelyard.plugins.api import IRModule
    from kernelyard_llm.source import Source


def model_spec(config: ModelConfig, weights: Weights) -> nn.ModuleSpec:
    """Return the network with the inputs of its functions: any number of new tokens, any number of cached rows."""
    row = nn.spec.Tensor([1, "rows", config.kv_heads, config.head_size])
    caches = nn.spec.Tuple([row] * len(config.layers))
    state = {"lengths": nn.spec.Tensor([1], "int64"), "cached_keys": caches, "cached_values": caches}
    page = nn.spec.Tensor(["pages", PAGE, config.kv_heads, config.head_size])
    pools = nn.spec.Tuple([page] * len(config.layers))
    tables = nn.spec.Tensor(["batch", "columns"], "int32")
    methods = {
        PREFILL: {"tokens": nn.spec.Tensor([1, "n"], "int64"), **state},
        DECODE: {"tokens": nn.spec.Tensor([1, 1], "int64"), **state},
        EXTEND: {
            "tokens": nn.spec.Tensor(["batch", "n"], "int64"),
            "lengths": nn.spec.Tensor(["batch"], "int64"),
            "tables": tables,
            "key_pages": pools,
            "value_pages": pools,
        },
        HEAD: {"hidden": nn.spec.Tensor(["m", config.width])},
    }
    return nn.ModuleSpec(Decoder(config, weights), methods)


def to_ir(source: Source) -> IRModule:
    """Return the module of a network; its metadata have what a program does not need: tokenizer and template.

    Raises: ModelFileError for weights that the network lacks, or that have other sizes than it.
    """
    try:
        module = model_spec(source.description.config, source.weights).to_ir()
    except (TypeInferenceError, ShapeError) as error:
        raise ModelFileError("the weights do not fit the configuration", found=error.message) from error
    return module.with_attrs(metadata={KEY: source.description.to_json()})
