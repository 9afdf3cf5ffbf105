"""Networks with trained weights: quantized ones still do what they are for."""

from __future__ import annotations

import numpy as np
import onnx
from byte_products import HAS_BYTE_PRODUCTS, needs_byte_products
from ocr import Network, PageReader, model_paths
from page import LINES, draw_page
from recipes.pretrained import SENTENCES, efficientnet, minilm, photographs, tokens

import kernelyard as ky

CALIBRATION = (
    *("the dog is in the house", "she was a very good person and a great friend"),
    *("it is cold today and the sun is not out", "the new computer can read all of these files"),
    *("we went to the city to see a film", "the president of the company said that sales were down"),
    *("a cat and a dog are happy together", "music is a way of life for many people"),
)


def network(exe: ky.Executable, seen: list[dict[str, np.ndarray]] | None = None) -> Network:
    def run(feeds):
        if seen is not None:
            seen.append({name: np.array(array) for name, array in feeds.items()})
        return [np.asarray(tensor) for tensor in exe.run(feeds).values()]

    return run


def test_a_page_is_read_exactly_by_integers() -> None:
    page = draw_page()
    float32 = {name: ky.compile(path) for name, path in model_paths().items()}
    characters = float32["recogniser"].metadata["character"]
    seen: dict[str, list] = {name: [] for name in float32}
    reader = PageReader(**{name: network(exe, seen[name]) for name, exe in float32.items()}, characters=characters)
    reader.read(page.resize((page.width * 9 // 10, page.height * 9 // 10)))  # calibrated on another size
    quantized = {
        name: ky.quantize(path, seen[name][:4], "static", measure=False) for name, path in model_paths().items()
    }
    exes = {name: ky.compile(module) for name, module in quantized.items()}
    for name, exe in exes.items():
        if HAS_BYTE_PRODUCTS:  # without VNNI oneDNN declines products of integers, and floats are multiplied
            assert products_of_integers(exe) == len(quantized[name].quantization.quantized)
    reader = PageReader(**{name: network(exe) for name, exe in exes.items()}, characters=characters)
    assert [line.text for line in reader.read(page)] == [text for text, _ in LINES]


def products_of_integers(exe: ky.Executable) -> int:
    """Count the library's quantized products, and those that generated kernels multiply with what they dequantize."""
    taken = [each for each in exe.report.regions if each.pattern.startswith("dnnl.quantized")]
    generated = [each.calls for each in exe.report.kernels if {"dequantize", "matmul"} <= set(each.ops)]
    return len(taken) + sum(generated)


def cosines(model: object) -> np.ndarray:
    embedding = ky.compile(model).run(tokens(SENTENCES))["embedding"].numpy()
    return (embedding @ embedding.T)[np.triu_indices(3, 1)]


def test_sentences_keep_their_cosines() -> None:
    model = minilm()
    feeds = [tokens(CALIBRATION[start : start + 4]) for start in (0, 4)]
    quantized = ky.quantize(model, feeds, "static", max_error=0.12)
    assert len(quantized.quantization.kept) <= 2  # of 36
    np.testing.assert_allclose(cosines(quantized), cosines(model), rtol=0, atol=0.01)


def test_images_keep_their_classes() -> None:
    model = efficientnet()
    images = photographs()
    quantized = ky.quantize(model, images, "static", measure=False)
    assert not quantized.quantization.kept
    exact, ours = (
        np.concatenate([exe(image).numpy() for image in images]) for exe in (ky.compile(model), ky.compile(quantized))
    )
    second, first = np.sort(exact, axis=1)[:, -2:].T
    is_clear = first - second > 0.25
    assert is_clear.sum() >= 8
    np.testing.assert_array_equal(ours.argmax(axis=1)[is_clear], exact.argmax(axis=1)[is_clear])
    assert {985, 698} <= set(exact.argmax(axis=1))  # daisy, palace: the weights are the trained ones


@needs_byte_products
def test_the_saved_network_is_the_same_for_onnxruntime(tmp_path) -> None:
    import onnxruntime

    images = photographs()
    quantized = ky.quantize(efficientnet(), images[::2], "static", measure=False)
    quantized.save(tmp_path / "quantized.onnx")
    onnx.checker.check_model(tmp_path / "quantized.onnx", full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "quantized.onnx", providers=["CPUExecutionProvider"])
    exe = ky.compile(quantized)
    for image in images[:3]:
        (theirs,) = session.run(None, {"image": image})
        difference = np.linalg.norm(exe(image).numpy() - theirs) / np.linalg.norm(theirs)
        assert difference < 0.05  # 50 layers, in each of which numbers in the middle of two steps may fall apart
