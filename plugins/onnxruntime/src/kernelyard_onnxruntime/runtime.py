"""The runtime half: one onnxruntime session for each region and number of threads, for all sizes.

It imports nothing of the compiler, and not `onnx`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelyard import dtypes
from kernelyard.runtime.api import (
    LRU,
    BindableModule,
    BindContext,
    BoundCall,
    BoundTensor,
    Fields,
    Signature,
    corrupted,
    pack_module,
    split_code,
    unpack_module,
)

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

SCHEMA, MAGIC = 1, b"KYONNXRT"
MAX_SESSIONS = 64
ERRORS_ONLY, FATAL_ONLY = 3, 4  # severities of onnxruntime's log


class OnnxModel(NamedTuple):
    """A region: the bytes of its model, and the digests of the constants that it names."""

    symbol: str
    signature: Signature
    constants: Mapping[str, str]
    model: bytes

    def facts(self) -> dict[str, Any]:
        """Return all but the bytes, as JSON data."""
        inputs, outputs = ([spec.to_json() for spec in specs] for specs in self.signature)
        constants = dict(self.constants)
        return {
            "symbol": self.symbol,
            "inputs": inputs,
            "outputs": outputs,
            "constants": constants,
            "size": len(self.model),
        }


def open_session(
    model: bytes, constants: Mapping[str, np.ndarray], threads: int, is_quick: bool = False
) -> InferenceSession:
    """Return a session of a model on the CPU.

    constants: those that the model names, by name; they are not copied. is_quick: whether it is only to be seen that
    onnxruntime can, without optimizing anything. Raises: an exception of onnxruntime's own.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = FATAL_ONLY if is_quick else ERRORS_ONLY
    options.add_session_config_entry("session.force_spinning_stop", "1")  # others compute after it
    # What is quantized twice in a row is rounded twice, here and in the model.
    options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    if is_quick:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if constants:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in constants.values()]
        options.add_external_initializers(list(constants), values)
    # It quantizes the weights, too, where a layer of floats has integers on both sides.
    refused = ["WeightBiasQuantization"]
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=refused)


class OnnxruntimeModule(BindableModule):
    """Functions that are ONNX models; sessions are opened when a function is first bound, and shared by all sizes."""

    kind = "onnxruntime"

    def __init__(self, models: Sequence[OnnxModel], constants: Mapping[str, np.ndarray]) -> None:
        self._models = {model.symbol: model for model in models}
        wanted = {digest for model in models for digest in model.constants.values()}
        missing = sorted(wanted - set(constants))
        if missing:
            raise corrupted("onnxruntime module", "no constant", missing[0])
        self._constants = {digest: constants[digest] for digest in sorted(wanted)}
        self._sessions: LRU[tuple[str, int], InferenceSession] = LRU(MAX_SESSIONS)

    def symbols(self) -> tuple[str, ...]:
        """See `RuntimeModule.symbols`."""
        return tuple(self._models)

    def constants(self) -> Mapping[str, np.ndarray]:
        """See `RuntimeModule.constants`."""
        return self._constants

    def signature(self, symbol: str) -> Signature:
        """See `BindableModule.signature`."""
        return self._model(symbol).signature

    def _model(self, symbol: str) -> OnnxModel:
        if symbol not in self._models:
            raise self.unknown_symbol(symbol)
        return self._models[symbol]

    def _session(self, model: OnnxModel, threads: int) -> InferenceSession:
        def open_model() -> InferenceSession:
            named = {name: self._constants[digest] for name, digest in model.constants.items()}
            return open_session(model.model, named, threads)

        return self._sessions.get_or_make((model.symbol, threads), open_model)

    def bind(
        self, symbol: str, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """See `RuntimeModule.bind`: a binding of memory is the caller's own, the session is shared."""
        session = self._session(self._model(symbol), context.threads)
        binding = session.io_binding()
        places: list[Callable[..., None]] = [partial(binding.bind_input, node.name) for node in session.get_inputs()]
        places += [partial(binding.bind_output, node.name) for node in session.get_outputs()]

        def move(place: Callable[..., None], arg: BoundTensor, address: int) -> None:
            place("cpu", 0, dtypes.to_numpy(arg.dtype), arg.shape, address)

        rebind = {n: partial(move, place, arg) for n, (place, arg) in enumerate(zip(places, args, strict=True))}
        for number, arg in enumerate(args):
            rebind[number](arg.address)
        return BoundCall([partial(session.run_with_iobinding, binding)], keep=[self], rebind=rebind)

    def save_to_bytes(self) -> bytes:
        """See `RuntimeModule.save_to_bytes`."""
        models = list(self._models.values())
        return pack_module(
            MAGIC, SCHEMA, {"functions": [each.facts() for each in models]}, [each.model for each in models]
        )


def load(data: bytes, constants: Mapping[str, np.ndarray]) -> OnnxruntimeModule:
    """Return the module that `save_to_bytes` wrote. Raises: ArtifactCorruptedError, ArtifactVersionError."""
    header, code = unpack_module(data, MAGIC, SCHEMA, "onnxruntime")
    functions = [Fields(item, where) for item, where in header.items("functions")]
    parts = split_code(code, [each.integer("size") for each in functions], "onnxruntime")
    return OnnxruntimeModule([_read(fields, part) for fields, part in zip(functions, parts, strict=True)], constants)


def _read(fields: Fields, model: bytes) -> OnnxModel:
    inputs, outputs = (
        fields.each(key, lambda item, where: Fields(item, where).tensor()) for key in ("inputs", "outputs")
    )
    return OnnxModel(fields.text("symbol"), Signature(inputs, outputs), fields.strings("constants"), model)
