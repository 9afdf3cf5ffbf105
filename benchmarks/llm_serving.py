"""Serve a language model to many: throughput beside one text after the other, and a load with faults.

python benchmarks/llm_serving.py throughput MODEL [--threads 1] [--json]
python benchmarks/llm_serving.py load MODEL [--requests 1000] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any
from urllib.request import urlopen

import kernelyard_llm
from kernelyard_llm.engine.engine import Engine

ROUNDS = 3


# --- throughput -------------------------------------------------------------------------------------------------------
def throughput(path: str, threads: int, prompt_tokens: int, new_tokens: int) -> dict[str, float]:
    """Return tokens per second of one text after the other, of 8 and of 32 at once, and the ratios, taken in turns.

    By the clock, and ("cpu") of processor time, which other work on the machine disturbs less.
    """
    model = kernelyard_llm.load(path, threads=threads, context=prompt_tokens + new_tokens)
    choose = random.Random(0)
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "8": [], "32": []}
    with Engine(model) as engine:
        for number in range(ROUNDS + 1):
            prompts = [[choose.randrange(model.config.vocabulary) for _ in range(prompt_tokens)] for _ in range(44)]
            speeds = {
                "alone": _alone(model, prompts[:4], new_tokens),
                "8": _together(engine, prompts[4:12], new_tokens),
                "32": _together(engine, prompts[12:], new_tokens),
            }
            for name, speed in speeds.items():
                found[name] += [speed] if number else []  # the first round makes plans
    results: dict[str, float] = {}
    for place, kind in enumerate(("", "_cpu")):
        medians = {name: median(each[place] for each in speeds) for name, speeds in found.items()}
        results |= {f"{name}_tokens_per_second{kind}": speed for name, speed in medians.items()}
        results |= {f"{name}_over_alone{kind}": medians[name] / medians["alone"] for name in ("8", "32")}
    return results


class _Clock:
    """Tokens per second since it was made: by the clock, and of processor time."""

    def __init__(self) -> None:
        self._begin, self._cpu = time.perf_counter(), time.process_time()

    def speeds(self, tokens: int) -> tuple[float, float]:
        return tokens / (time.perf_counter() - self._begin), tokens / (time.process_time() - self._cpu)


def _alone(model: kernelyard_llm.LanguageModel, prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, float]:
    clock = _Clock()
    for prompt in prompts:
        model.generate(prompt, new_tokens, ignore_eos=True)
    return clock.speeds(len(prompts) * new_tokens)


def _together(engine: Engine, prompts: Sequence[list[int]], new_tokens: int) -> tuple[float, float]:
    with ThreadPoolExecutor(len(prompts)) as threads:
        clock = _Clock()
        done = list(threads.map(lambda prompt: len(list(engine.stream(prompt, new_tokens, ignore_eos=True))), prompts))
        return clock.speeds(sum(done))


# --- load -------------------------------------------------------------------------------------------------------------
def load(path: str, threads: int, requests: int) -> dict[str, Any]:
    """Return the answers of a server of its own to requests of random lengths, of which many do it wrong."""
    command = [sys.executable, "-m", "kernelyard", "serve", "--openai", f"m={path}", "--port", "0"]
    command += ["--threads", str(threads), "--max-queue", "48", "--body-timeout", "1"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        port = int(url.rpartition(":")[2])
        asyncio.run(_all(port, requests))  # pages and plans are made
        before, begin = _memory(url), time.perf_counter()
        answers = asyncio.run(_all(port, requests))
        seconds, after = time.perf_counter() - begin, _memory(url)
        gauges = _gauges(url, ("waiting", "running", "pages_used", "failed_total"))
    finally:
        server.terminate()
        code = server.wait(60)
    return {
        "answers": dict(sorted(answers.items())),
        "requests_per_second": requests / seconds,
        "megabytes_before": before / 1e6,
        "megabytes_after": after / 1e6,
        **gauges,
        "exit_status": code,
    }


async def _all(port: int, count: int) -> Counter[str]:
    limit = asyncio.Semaphore(96)
    choose = random.Random(count)

    async def one(number: int) -> str:
        async with limit:
            kind = choose.choices(("whole", "stream", "bad JSON", "bad field", "leaves"), (40, 30, 10, 5, 15))[0]
            return f"{kind}: {await asyncio.wait_for(_ask(port, kind, choose), 300)}"

    return Counter(await asyncio.gather(*(one(number) for number in range(count))))


async def _ask(port: int, kind: str, choose: random.Random) -> str:
    """Return the status of an answer; a stream has to end as the protocol says."""
    text = "".join(choose.choices("the quick brown fox jumps over it ", k=choose.randint(1, 300)))
    asked = {"prompt": text, "max_tokens": choose.randint(1, 48), "stream": kind in ("stream", "leaves")}
    body = {"bad JSON": b'{"prompt": "x"', "bad field": b'{"prompt": 5}'}.get(kind, json.dumps(asked).encode())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        status = (await reader.readline()).split()[1].decode()
        if kind == "leaves":
            await asyncio.sleep(choose.random())
            return "left"
        rest = await reader.read()
        if status == "200" and kind == "stream" and b"data: [DONE]" not in rest:
            return "stream without end"
        return status
    finally:
        writer.close()


def _gauges(url: str, names: Sequence[str]) -> dict[str, float]:
    with urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(line.rpartition(" ")[2])
        for name in names
        for line in lines
        if line.startswith(f"kernelyard_llm_{name}{{")
    }


def _memory(url: str) -> float:
    return _gauges(url, ("resident_bytes",))["resident_bytes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("throughput", "load"))
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.what == "load":
        found = load(given.model, given.threads, given.requests)
    else:
        found = throughput(given.model, given.threads, given.prompt_tokens, given.new_tokens)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' ')}: {value:.2f}" if isinstance(value, float) else f"{name}: {value}")


if __name__ == "__main__":
    main()
