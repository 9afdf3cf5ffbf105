"""Every parser of what comes from outside, with whole inputs that our own writers made."""

from __future__ import annotations

import io
import json
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llvmlite import binding

import kernelyard as ky
from kernelyard.cli.feeds import read_array
from kernelyard.dims import symbol
from kernelyard.driver.session.import_model import import_model
from kernelyard.errors import KernelyardError
from kernelyard.ir import FunctionBuilder, IRModule, parse_module, to_text
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.plugins.interfaces.manifest import parse_manifest
from kernelyard.runtime.artifact.container import Member, pack_container, read_container
from kernelyard.runtime.execute.executable import TensorInfo
from kernelyard.runtime.jit.object_code import ObjectCode, UnlinkableError
from kernelyard_debug.open_case import read_feeds
from kernelyard_llm.description import Description
from kernelyard_llm.from_huggingface import huggingface_config, read_json
from kernelyard_llm.gguf import read_gguf
from kernelyard_llm.safetensors import Arrays
from kernelyard_llm.server import protocol
from kernelyard_onnx_export import to_onnx
from kernelyard_serve import grpc_codec
from kernelyard_serve.grpc_messages import message
from kernelyard_serve.grpc_service import parse_request
from kernelyard_serve.http_codec import decode_request
from kernelyard_serve.inference import Deadline
from peers.structured import repacked_archive, repacked_head, repacked_message

Repack = Callable[[bytes, Callable[[bytes], bytes]], bytes]
READS = """
@weights = internal constant [4 x double] [double 1.0, double 2.0, double 4.0, double 8.0]
define double @kernel(i64 %i) {
  %p = getelementptr double, ptr @weights, i64 %i
  %w = load double, ptr %p
  ret double %w
}"""
CALLS = """
@calls = internal global i64 0
define internal i64 @count(i64 %x) noinline {
  %before = load i64, ptr @calls
  %after = add i64 %before, %x
  store i64 %after, ptr @calls
  ret i64 %after
}
define i64 @kernel(i64 %x) {
  %result = call i64 @count(i64 %x)
  ret i64 %result
}"""
MANIFESTS = ("dnnl", "native-cpu", "onnxruntime")


class RefusedError(KernelyardError):
    """An object file is one that is not linked here."""

    code = "unlinkable"


@dataclass(frozen=True)
class Parser:
    """One parser. seeds: whole inputs. repack: writes a container whose parts a function has changed."""

    name: str
    parse: Callable[[bytes], object]
    seeds: Sequence[bytes]
    is_text: bool = False
    repack: Repack | None = None


def parsers() -> dict[str, Parser]:
    """Return all parsers by name."""
    artifacts = [
        ky.compile(module, backends=backends).to_bytes() for module in modules() for backends in ([], ["dnnl"])
    ]
    models = [to_onnx(module).SerializeToString() for module in modules()]
    each = [
        Parser("onnx", _onnx, models, repack=repacked_message(type(to_onnx(modules()[0])))),
        Parser("gguf", _of_file(read_gguf), [gguf()]),
        Parser("safetensors", _of_file(lambda path: dict(Arrays([path]))), [safetensors()], repack=repacked_head),
        Parser("npz", _of_file(read_feeds), [npz()], repack=repacked_archive),
        Parser("npy", _of_file(lambda path: read_array(f"x={path}")), npy()),
        Parser("artifact", ky.load, artifacts, repack=repacked),
        Parser("object code", _object_code, object_files()),
        Parser("manifest", lambda data: parse_manifest(_text(data), "manifest"), manifests(), is_text=True),
        Parser("ir", lambda data: parse_module(_text(data)), [to_text(m).encode() for m in modules()], is_text=True),
        Parser("http", _http, [http()], is_text=True),
        Parser("binary http", _binary_http, [binary_http()]),
        Parser("grpc", _grpc, [grpc()], repack=repacked_message(message("ModelInferRequest"))),
        Parser("config", _of_file(_config), [config()], is_text=True),
        Parser("description", lambda data: Description.from_json(_text(data)), [description()], is_text=True),
        Parser("chat", _chat, [chat()], is_text=True),
    ]
    return {parser.name: parser for parser in each}


# --- parsers ----------------------------------------------------------------------------------------------------------
def _onnx(data: bytes) -> object:
    return import_model(get_manager(), data, {})


def _of_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = Path(tempfile.mkdtemp()) / "input"

    def parse(data: bytes) -> object:
        path.unlink(missing_ok=True)  # another file: the last one may be mapped
        path.write_bytes(data)
        return read(path)

    return parse


def _object_code(data: bytes) -> object:
    """Link an object file. What cannot be linked here is left to LLVM, which is how that error is meant."""
    try:
        return ObjectCode([data], {}, ("kernel",))
    except UnlinkableError:
        raise RefusedError("an object file cannot be linked") from None


INPUTS = {"x": TensorInfo("x", ("n", 3), "float32"), "i": TensorInfo("i", (2,), "int64")}


def _http(data: bytes) -> object:
    return decode_request(data, None, INPUTS, ["y"])


def _binary_http(data: bytes) -> object:
    """Read a body whose head ends with its first line, as its header says."""
    return decode_request(data, str(data.find(b"\n") + 1), INPUTS, ["y"])


def _grpc(data: bytes) -> object:
    return grpc_codec.decode_request(parse_request("ModelInfer", data), INPUTS, ["y"], Deadline())


def _config(path: Path) -> object:
    return huggingface_config(read_json(path), str(path))


def _chat(data: bytes) -> object:
    request = protocol.read(data, protocol.Chat)
    return request.plain(), protocol.sampling_of(request, 0)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


# --- whole inputs -----------------------------------------------------------------------------------------------------
def modules() -> list[IRModule]:
    """Return small modules: a convolution, a product with a branch of its own, and a reduction of integers."""
    found = []
    rng = np.random.default_rng(0)
    for kind in range(3):
        b = FunctionBuilder()
        if kind == 0:
            x, weight = b.input("x", (1, 3, 8, 8)), rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
            y = b.op("nn.relu", b.op("nn.conv2d", x, weight, padding=(1, 1, 1, 1)))
        elif kind == 1:
            x, z = b.input("x", (symbol("n"), 4)), b.input("z", (symbol("n"), 4))
            y = b.op("add", b.op("nn.softmax", b.op("matmul", x, np.eye(4, dtype=np.float32)), axis=1), z)
        else:
            y = b.op("sum", b.op("take", b.input("t", (5, 2), "int64"), np.array([0, 3]), axis=0), axes=(0,))
        found.append(IRModule({"main": b.function(y)}))
    return found


def gguf() -> bytes:
    """Return a GGUF file of a few entries and two tensors."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    entries = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    entries += [text("llama.block_count") + struct.pack("<II", 4, 2)]
    entries += [text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")]
    entries += [text("scores") + struct.pack("<IIQff", 9, 6, 2, 0.5, 1.5)]
    tensors = [text("one") + struct.pack("<IQQIQ", 2, 32, 2, 2, 0), text("two") + struct.pack("<IQIQ", 1, 4, 0, 64)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join((*entries, *tensors))
    return head + bytes(-len(head) % 32) + bytes(36) + bytes(28) + bytes(16)


def safetensors() -> bytes:
    """Return a safetensors file of two arrays."""
    head = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
        "__metadata__": {"format": "pt"},
    }
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + bytes(32)


def repacked(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return an artifact with one of its parts changed, and right digests."""
    contents = read_container(data)
    parts = {name: member.tobytes() for name, member in contents.members.items()}
    manifest = {name: value for name, value in contents.manifest.value.items() if name != "members"}
    chosen = sorted(parts, key=lambda name: hash_of(name, change))[0]
    parts[chosen] = change(parts[chosen])
    return pack_container(manifest, [Member(name, [part]) for name, part in parts.items()])


def hash_of(name: str, change: Callable[[bytes], bytes]) -> bytes:
    """Return a number that the changes decide: which part it is follows from the same random numbers."""
    return change(name.encode())


def object_files() -> list[bytes]:
    """Return an object file of a function that reads a constant, and one that calls another."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        opt=2, reloc="pic", codemodel="small", jit=True
    )
    return [machine.emit_object(binding.parse_assembly(text)) for text in (READS, CALLS)]


def manifests() -> list[bytes]:
    """Return manifests of plugins of this repository."""
    plugins = Path(__file__).parents[2] / "plugins"
    return [path.read_bytes() for name in MANIFESTS for path in (plugins / name).glob("src/*/manifest.toml")]


def http() -> bytes:
    """Return the body of an inference request."""
    x = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [[1, 2, 3], [4.5, 5, 6]]}
    i = {"name": "i", "datatype": "INT64", "shape": [2], "data": [7, 8]}
    body = {"id": "1", "inputs": [x, i], "outputs": [{"name": "y", "parameters": {"binary_data": False}}]}
    return json.dumps(body).encode()


def binary_http() -> bytes:
    """Return the body of an inference request whose tensors follow it as bytes."""
    x = {"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}
    i = {"name": "i", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}}
    body = {"id": "1", "inputs": [x, i], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    return json.dumps(body).encode() + b"\n" + bytes(40)


def grpc() -> bytes:
    """Return an inference request of gRPC."""
    asked = message("ModelInferRequest")(model_name="m")
    x = asked.inputs.add(name="x", datatype="FP32", shape=[2, 3])
    x.contents.fp32_contents.extend([1, 2, 3, 4.5, 5, 6])
    asked.inputs.add(name="i", datatype="INT64", shape=[2]).contents.int64_contents.extend([7, 8])
    asked.outputs.add(name="y")
    return asked.SerializeToString()


def npz() -> bytes:
    """Return an archive of two arrays, one of them compressed."""
    written = io.BytesIO()
    np.savez_compressed(written, x=np.ones((2, 3), np.float32), i=np.arange(2))
    return written.getvalue()


def npy() -> list[bytes]:
    """Return files of one array: of numbers, and of records."""
    found = []
    for array in (np.ones((2, 3), np.float32), np.zeros(2, [("a", "i4"), ("b", "f8")])):
        written = io.BytesIO()
        np.save(written, array)
        found.append(written.getvalue())
    return found


def config() -> bytes:
    """Return the configuration of a small language model with windows and scaled positions."""
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    sizes |= {"vocab_size": 128, "max_position_embeddings": 64, "head_dim": 16, "intermediate_size": 128}
    given = {"model_type": "llama", "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0, **sizes}
    return json.dumps(given | {"rope_scaling": rope, "tie_word_embeddings": True}).encode()


def description() -> bytes:
    """Return the description of a language model that an artifact keeps."""
    network = huggingface_config(json.loads(config()), "config")
    return Description(network, "{}", 1, (2,), None).to_json().encode()


def chat() -> bytes:
    """Return the body of a chat request."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    return json.dumps({"model": "m", "messages": messages, "temperature": 0.5, "max_tokens": 8, "stop": ["."]}).encode()
