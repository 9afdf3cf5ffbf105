"""The machine code of cubins, by NVIDIA's disassembler: what budgets of kernels count."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import NamedTuple

DISTRIBUTIONS = ("nvidia-cuda-nvdisasm", "nvidia-cuda-nvdisasm-cu12", "nvidia-cuda-nvdisasm-cu13")
_LABEL = re.compile(r"^\.(L_\S+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(@!?U?P\w+ )?\s*([A-Z][A-Z0-9_.]*)(.*?);")
_REGISTERS = re.compile(r"SHI_REGISTERS=(\d+)")
_TARGET = re.compile(r"\.(L_\w+)")


def find_disassembler() -> str | None:
    """Return the path of nvdisasm: on the PATH, or of NVIDIA's wheel; None where there is none."""
    for name in DISTRIBUTIONS:
        try:
            files = metadata.files(name) or ()
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "nvdisasm":
                return str(file.locate())
    return which("nvdisasm")


class Instruction(NamedTuple):
    """An instruction: its place among those of the kernel, its name with modifiers ("STG.E.128"), its operands."""

    place: int
    name: str
    operands: str
    is_conditional: bool


class Code:
    """The instructions of a kernel."""

    def __init__(self, text: str) -> None:
        registers = _REGISTERS.search(text)
        self.registers = int(registers[1]) if registers else 0  # of a thread, when the kernel starts
        self.instructions: list[Instruction] = []
        self._labels: dict[str, int] = {}
        for line in text.splitlines():
            label = _LABEL.match(line)
            if label:
                self._labels[label[1]] = len(self.instructions)
            found = _INSTRUCTION.match(line)
            if found:
                self.instructions.append(Instruction(len(self.instructions), found[2], found[3], bool(found[1])))

    def count(self, *names: str, inside: range | None = None) -> int:
        """Return how many instructions begin with one of some names, such as "STG.E.128", "LDL"."""
        places = inside if inside is not None else range(len(self.instructions))
        return sum(self.instructions[place].name.startswith(names) for place in places)

    @property
    def length(self) -> int:
        """The number of instructions up to the last that ends a thread, without what fills the rest of the memory."""
        return max(each.place for each in self.instructions if each.name == "EXIT") + 1

    @cached_property
    def loops(self) -> list[range]:
        """The loops, by the jumps back that end them; the largest first. The idle jump that ends the code is none."""
        found = []
        for each in self.instructions:
            start = self._target(each)
            if start is not None and start < each.place:
                found.append(range(start, each.place + 1))
        return sorted(found, key=len, reverse=True)

    def shortest(self, loop: range) -> int:
        """Return how many instructions the shortest way through a loop has, by the jumps ahead that it may take."""
        least = {loop.stop: 0}
        for place in reversed(loop):
            each = self.instructions[place]
            after = [place + 1]
            target = self._target(each)
            if target is not None and place < target <= loop.stop:
                after = [target, place + 1] if each.is_conditional else [target]
            least[place] = 1 + min(least[next_] for next_ in after)
        return least[loop.start]

    def _target(self, each: Instruction) -> int | None:
        """Return the place that an instruction jumps to; None for those that do not."""
        found = _TARGET.search(each.operands) if each.name.startswith("BRA") else None
        return self._labels.get(found[1]) if found else None

    def loop_with(self, name: str) -> range:
        """Return the shortest loop that has most of the instructions of a name, such as "HMMA"."""
        most = max(self.count(name, inside=loop) for loop in self.loops)
        return min((loop for loop in self.loops if self.count(name, inside=loop) == most), key=len)


def disassembled(cubin: bytes, kernels: Sequence[str], folder: Path) -> dict[str, Code]:
    """Return the code of some kernels of a cubin. Raises: AssertionError where the disassembler fails."""
    tool = find_disassembler()
    assert tool is not None
    path = folder / "kernels.cubin"
    path.write_bytes(cubin)
    done = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sections = re.split(r"^\s*\.section\s+\.text\.", done.stdout, flags=re.MULTILINE)
    by_name = {section.split(",", 1)[0]: Code(section) for section in sections[1:]}
    return {kernel: by_name[kernel] for kernel in kernels}
