"""Compile the page reader's networks with native-cpu alone, read the page, and keep what came of it: OUTPUT [NETWORK ...].

It runs on both architectures; `test_python.py` compares them. In OUTPUT, an `.npz` file: the lines, and the results of
each call of the detector and the recogniser, in order.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from ocr import Network, PageReader, model_paths
from page import draw_page

import kernelyard as ky

RESULTS: dict[str, np.ndarray] = {}


def network(name: str) -> tuple[ky.Executable, Network]:
    """Return a compiled network, and a call of it that keeps its results."""
    exe = ky.compile(model_paths()[name], backends=[], strict=True)

    def call(feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        outputs = [np.array(tensor) for tensor in exe.run(feeds).values()]
        for output in outputs:
            RESULTS[f"{name}_{sum(key.startswith(name) for key in RESULTS)}"] = output
        return outputs

    return exe, call


def main() -> None:
    detector, classifier, recogniser = (network(name) for name in ("detector", "classifier", "recogniser"))
    characters = recogniser[0].metadata["character"]
    lines = PageReader(detector[1], classifier[1], recogniser[1], characters).read(draw_page())
    machine = np.array([platform.machine(), str(detector[0].modules[0].needs)])
    np.savez(sys.argv[1], lines=np.array([line.text for line in lines]), machine=machine, **RESULTS)


if __name__ == "__main__":
    main()
