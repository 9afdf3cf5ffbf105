"""Make a wheel of the page reader: its networks compiled, and the steps between them.

python examples/read_page/wheel.py [--output FOLDER] [--mcpu x86-64-v3]
pip install FOLDER/page_reader-*.whl
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from ocr import model_paths

import kernelyard as ky
from kernelyard_deploy import Facts, export_wheel

HERE = Path(__file__).parent
FACTS = Facts(
    name="page-reader",
    version="1.0",
    license="Apache-2.0",
    source="https://github.com/RapidAI/RapidOCR",
    description="Read a page of text with three compiled networks",
)


def make_wheel(folder: Path, mcpu: str | None = None, backends: list[str] | str = "auto") -> Path:
    """Compile the networks, and return the path of the wheel. mcpu: the CPU that it is for, or better ones."""
    with tempfile.TemporaryDirectory() as work:
        artifacts: list[Path] = []
        for name, model in model_paths().items():
            artifacts.append(Path(work, f"{name}.kyar"))
            ky.compile(model, ky.Target("cpu", mcpu=mcpu), backends).save(artifacts[-1])
        code = [HERE / "ocr.py", HERE / "page_reader"]
        return export_wheel(artifacts, folder, FACTS, code=code, requires=["pillow>=10"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("dist"), help="folder for the wheel")
    parser.add_argument("--mcpu", help="the oldest CPU that it is for, such as x86-64-v3 (default: this one)")
    options = parser.parse_args()
    print(make_wheel(options.output, options.mcpu))
