"""ModelBench: engines take turns on a network; what each costs with the feeds and results of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from recipes.in_torch import Made

from on_gpu.engines import ENGINES, Stage, as_tuple
from on_gpu.results import Row
from on_gpu.turns import Engine, Turns, difference


def made_or_failed(model: str, name: str, make: Callable[[], Engine | None]) -> tuple[list[Engine], list[Row]]:
    """An engine; or a row with why there is none, as one that fails is told in the table while the others go on."""
    try:
        engine = make()
    except Exception as error:
        return [], [Row.of_failure(model, name, error)]
    return ([engine] if engine else []), []


class ModelBench:
    """engines: by name."""

    def __init__(self, stage: Stage, turns: Turns, engines: Sequence[str]) -> None:
        self.stage, self.turns, self.engines = stage, turns, engines

    def measure(self, model: str, made: tuple[Callable[[], Made], torch.dtype]) -> list[Row]:
        """Every engine on a network."""
        make, dtype = made
        torch.manual_seed(0)
        with torch.no_grad():
            network, feeds = make()
        network = network.eval().to(self.stage.place, dtype)
        feeds = tuple(feed.to(self.stage.place, dtype if feed.is_floating_point() else None) for feed in feeds)
        if dtype == torch.float16 and feeds[0].dim() == 4:
            network = network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        with torch.inference_mode():
            wanted = as_tuple(network(*feeds))

        def engine(name: str) -> Engine:
            run = ENGINES[name](self.stage, network, feeds)
            with torch.inference_mode():
                return Engine(name, run, error=max(map(difference, run(), wanted)))

        engines: list[Engine] = []
        failures: list[Row] = []
        for name in self.engines:
            found, failed = made_or_failed(model, name, lambda name=name: engine(name))
            engines += found
            failures += failed
        with torch.inference_mode():
            self.turns.take(engines)
        return [each.row(model) for each in engines] + failures
