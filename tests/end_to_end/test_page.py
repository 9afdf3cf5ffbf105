"""The main job: a rendered page is read exactly, through compiled networks."""

from __future__ import annotations

import numpy as np
from ocr import PageReader, model_paths
from page import LINES, draw_page

import kernelyard as ky


def test_page_is_read_exactly() -> None:
    exes = {name: ky.compile(path, backends=["dnnl", "native-cpu"]) for name, path in model_paths().items()}
    networks = {
        name: lambda feeds, exe=exe: [np.asarray(t) for t in exe.run(feeds).values()] for name, exe in exes.items()
    }
    reader = PageReader(**networks, characters=exes["recogniser"].metadata["character"])
    assert [line.text for line in reader.read(draw_page())] == [text for text, _ in LINES]


def test_upside_down_line_is_turned() -> None:
    exe = ky.compile(model_paths()["classifier"], backends=["dnnl"])
    from ocr import CLASSIFIER_WIDTH, padded, scaled_width

    line = draw_page().crop((36, 252, 404, 294))
    for crop, upright in ((line, 0), (line.rotate(180), 1)):
        image = padded(crop, min(CLASSIFIER_WIDTH, scaled_width(crop)), CLASSIFIER_WIDTH)
        assert exe(image).numpy()[0].argmax() == upright
