"""Read a page of text: what the wheel `page-reader` has beside its three networks and `ocr.py`.

`examples/read_page/wheel.py` makes the wheel.

    >>> import page_reader
    >>> page_reader.read("page.png")
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from ._models import load
from .ocr import Line, Network, PageReader


def read(page: str | Path | Image.Image) -> list[Line]:
    """Return the lines of a page, from top to bottom."""
    image = page if isinstance(page, Image.Image) else Image.open(page)
    return _reader().read(image.convert("RGB"))


@cache
def _reader() -> PageReader:
    networks = (_network(name) for name in ("detector", "classifier", "recogniser"))
    return PageReader(*networks, load("recogniser").metadata["character"])


def _network(name: str) -> Network:
    return lambda feeds: [np.asarray(tensor) for tensor in load(name).run(feeds).values()]
