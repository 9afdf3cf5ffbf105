"""The demo: render a page, compile three networks, read the page, show what ran where, save a picture.

python examples/read_page/demo.py [--output FOLDER] [--backends dnnl,native-cpu] [--quantize]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from ocr import MODELS, Line, Network, PageReader, model_paths
from page import INK, LINES, draw_page
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import track

import kernelyard as ky

BOX, READ = (214, 64, 38), (20, 110, 60)
REPEATS = 10


def main() -> int:
    """Read the rendered page; exit with 1 if a line was read wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    parser.add_argument("--backends", default="dnnl,native-cpu", help="backends in order of preference")
    parser.add_argument("--quantize", action="store_true", help="read with an int8 recogniser, too")
    options = parser.parse_args()
    console = Console()
    executables = compile_networks(options.backends.split(","), console)
    reader = PageReader(
        network(executables["detector"]),
        network(executables["classifier"]),
        network(executables["recogniser"]),
        executables["recogniser"].metadata["character"],
    )
    page = draw_page()
    lines = reader.read(page)
    for line in lines:
        print(line.text)
    for name, exe in executables.items():
        console.print(f"\n[bold]{name}[/bold]  {str(exe.report).splitlines()[0]}", highlight=False)
    times = [timed(reader, page) for _ in track(range(REPEATS), "reading again", console=console, transient=True)]
    console.print(f"\none page: {statistics.median(times) * 1e3:.1f} ms (median of {REPEATS}, {len(lines)} lines)")
    picture = save_picture(page, lines, options.output)
    console.print(f"picture: {picture}")
    right = is_right(lines)
    if options.quantize:
        right &= read_with_integers(executables, page, options.backends.split(","), console)
    if not right:
        console.print("[red]the text differs from what was drawn[/red]")
    return 0 if right else 1


def is_right(lines: list[Line]) -> bool:
    """Return True when all lines were read as they were drawn."""
    return [line.text for line in lines] == [text for text, _ in LINES]


def read_with_integers(
    executables: dict[str, ky.Executable], page: Image.Image, backends: list[str], console: Console
) -> bool:
    """Quantize the recogniser on a smaller page, read the page with it, and show both; True if it was read right."""
    detector, classifier, recogniser = (network(executables[name]) for name in MODELS)
    characters = executables["recogniser"].metadata["character"]
    feeds: list[dict[str, np.ndarray]] = []

    def observed(given: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        feeds.append({name: np.array(array) for name, array in given.items()})
        return recogniser(given)

    smaller = page.resize((page.width * 9 // 10, page.height * 9 // 10))
    PageReader(detector, classifier, observed, characters).read(smaller)
    quantized = ky.quantize(model_paths()["recogniser"], feeds, "static", measure=False, backends=backends)
    int8 = network(ky.compile(quantized, backends=backends))
    lines = PageReader(detector, classifier, int8, characters).read(page)
    console.print(f"\n[bold]recogniser, int8[/bold]  {str(quantized.quantization).splitlines()[0]}", highlight=False)
    for line in lines:
        print(f"{line.confidence:.3f}  {line.text}")
    engines = {"float32": recogniser, "int8": int8}
    seconds = dict.fromkeys(engines, float("inf"))
    for _ in range(REPEATS):
        for name, run in engines.items():
            start = time.perf_counter()
            run(feeds[0])
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    console.print(f"one line: float32 takes {seconds['float32'] / seconds['int8']:.2f} times as long as int8")
    return is_right(lines)


def compile_networks(backends: list[str], console: Console) -> dict[str, ky.Executable]:
    """Compile the three networks of the page reader."""
    paths = model_paths()
    steps = track(paths.items(), "compiling", console=console, transient=True)
    return {name: ky.compile(path, target="cpu", backends=backends) for name, path in steps}


def network(exe: ky.Executable) -> Network:
    """Return an executable as the function that the page reader calls."""
    return lambda feeds: [np.asarray(tensor) for tensor in exe.run(feeds).values()]


def timed(reader: PageReader, page: Image.Image) -> float:
    """Return the seconds that reading a page takes."""
    start = time.perf_counter()
    reader.read(page)
    return time.perf_counter() - start


def save_picture(page: Image.Image, lines: list[Line], folder: Path) -> Path:
    """Save the page with a box around each line on the left, and the text on the right."""
    picture = Image.new("RGB", (page.width * 2, page.height), (255, 255, 255))
    picture.paste(page, (0, 0))
    draw = ImageDraw.Draw(picture)
    for line in lines:
        draw.rectangle(line.box, outline=BOX, width=3)
        left, top = page.width + 30, line.box[1]
        draw.text((left, top), line.text, INK, ImageFont.load_default(28))
        draw.text((left, top + 36), f"{line.confidence:.3f}", READ, ImageFont.load_default(16))
    draw.line([(page.width, 0), (page.width, page.height)], fill=(200, 200, 200), width=2)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "page.png"
    picture.save(path)
    return path


if __name__ == "__main__":
    sys.exit(main())
