"""A language model beside llama.cpp and OpenVINO GenAI: one file, greedy, processes in turns.

    python benchmarks/language_models.py MODEL.gguf [--threads 1 2] [--prompt 256] [--new 128] [--rounds 3]
                                         [--engines kernelyard openvino llama.cpp] [--llama-cpp DIR] [--json FILE]

`--llama-cpp` is a build of llama.cpp: a folder with `include/` and `lib/`, as its `cmake --install` makes it. OpenVINO
GenAI is the package `openvino-genai`. Each round starts a process of each engine, which reads the same prompt twice
(the second time counts) and writes tokens greedily. Printed: tokens per second by the clock and processor time, which
other work on the machine disturbs less, the median of the rounds, and the ratio to the better of the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

OURS = "kernelyard"
PARTS = ("prefill", "decode")


def prompt_of(count: int, vocabulary: int) -> list[int]:
    """Return the tokens that every engine reads."""
    return [(number * 7919 + 13) % vocabulary for number in range(count)]


def kernelyard_rounds(model: str, threads: int, prompt: int, new: int, rounds: int) -> Iterator[dict[str, float]]:
    """Measure ours, from an artifact."""
    begin = time.perf_counter()
    import kernelyard_llm

    loaded = kernelyard_llm.load(model, threads=threads, context=prompt + new)
    load = time.perf_counter() - begin
    ids = prompt_of(prompt, loaded.config.vocabulary)
    for _ in range(rounds):
        tokens, start = loaded.stream(ids, new, ignore_eos=True), _now()
        next(tokens)
        first = _now()
        assert sum(1 for _ in tokens) == new - 1
        yield {"load": load, **_named(_difference(start, first), _difference(first, _now()))}


def openvino_rounds(model: str, threads: int, prompt: int, new: int, rounds: int) -> Iterator[dict[str, float]]:
    """Measure OpenVINO GenAI: one token, then all of them; the difference is what the others took."""
    begin = time.perf_counter()
    import numpy as np
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
    load = time.perf_counter() - begin
    vocabulary = len(pipeline.get_tokenizer().get_vocab())
    for number in range(rounds):
        marks = [_now()]
        for place, count in enumerate((1, new)):
            # Another prompt each time: a prefix that was read before is not read again.
            ids = np.asarray([prompt_of(prompt, vocabulary - 2 * number - place - 1)[::-1]], np.int64)
            given = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
            pipeline.generate(given, max_new_tokens=count, ignore_eos=True, do_sample=False)
            marks.append(_now())
        first, both = (_difference(marks[0], marks[1]), _difference(marks[1], marks[2]))
        rest = tuple(b - a for a, b in zip(first, both, strict=True))
        yield {"load": load, **_named(first, rest)}


WORKERS = {OURS: kernelyard_rounds, "openvino": openvino_rounds}


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _difference(begin: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    return end[0] - begin[0], end[1] - begin[1]


def _named(prefill: Sequence[float], decode: Sequence[float]) -> dict[str, float]:
    return {"prefill": prefill[0], "prefill_cpu": prefill[1], "decode": decode[0], "decode_cpu": decode[1]}


def built(folder: Path, into: Path) -> Path:
    """Compile the program that runs llama.cpp."""
    source, library = Path(__file__).parent / "peers" / "llama_cpp.cpp", folder / "lib"
    flags = ["-O2", f"-I{folder / 'include'}", f"-L{library}", f"-Wl,-rpath,{library.resolve()}"]
    libraries = ["-lllama", "-lggml", "-lggml-base", "-lggml-cpu"]
    subprocess.run(["c++", str(source), "-o", str(into), *flags, *libraries], check=True)
    return into


def measured(command: Sequence[str]) -> dict[str, float]:
    """Return the last round of a process."""
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return json.loads(next(line for line in reversed(lines) if line.startswith("{")))


def speeds(rounds: Sequence[dict[str, float]], prompt: int, new: int) -> dict[str, float]:
    """Return tokens per second, and seconds of loading: medians."""
    counts = {"prefill": prompt, "decode": new - 1}
    median = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    return {
        "load": median["load"],
        **{f"{part}{kind}": counts[part] / median[f"{part}{kind}"] for part in PARTS for kind in ("", "_cpu")},
    }


def compare(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all engines in turns, for each number of threads."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        artifact = Path(scratch) / "model.kyar"
        if OURS in arguments.engines:
            import kernelyard_llm

            kernelyard_llm.load(arguments.model).save(artifact)
        program = built(arguments.llama_cpp, Path(scratch) / "llama") if arguments.llama_cpp else None
        for threads in arguments.threads:
            sizes = [str(each) for each in (threads, arguments.prompt, arguments.new, 2)]
            own = [sys.executable, __file__, "--worker"]
            commands = {
                name: [*own, name, str(artifact if name == OURS else arguments.model), *sizes]
                for name in arguments.engines
            }
            if program is not None:
                commands["llama.cpp"] = [str(program), str(arguments.model), *sizes]
            found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
            for _ in range(arguments.rounds):
                for name, command in commands.items():
                    found[name].append(measured(command))
            rows += [
                {"engine": name, "threads": threads, **speeds(each, arguments.prompt, arguments.new)}
                for name, each in found.items()
            ]
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table, and ours over the better of the others."""
    names = ("load", *(f"{part}{kind}" for part in PARTS for kind in ("", "_cpu")))
    print(f"{'engine':12}{'threads':>8}" + "".join(f"{name:>13}" for name in names))
    for row in rows:
        print(f"{row['engine']:12}{row['threads']:8}" + "".join(f"{row[name]:13.2f}" for name in names))
    for threads in sorted({row["threads"] for row in rows}):
        ours = [row for row in rows if row["threads"] == threads and row["engine"] == OURS]
        others = [row for row in rows if row["threads"] == threads and row["engine"] != OURS]
        if ours and others:
            ratios = {name: ours[0][name] / max(row[name] for row in others) for name in names[1:]}
            print(f"{threads} threads, ours / the better: " + ", ".join(f"{n} {r:.2f}" for n, r in ratios.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--engines", nargs="+", default=[*WORKERS], choices=[*WORKERS])
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    for name, default in (("prompt", 256), ("new", 128), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = compare(arguments)
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        name, model, *sizes = sys.argv[2:]
        for each in WORKERS[name](model, *map(int, sizes)):
            print(json.dumps(each), flush=True)
    else:
        main()
