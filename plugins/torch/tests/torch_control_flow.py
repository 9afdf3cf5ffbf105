"""Models with a branch and with a loop."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops import while_loop


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.left(x).relu(), lambda x: self.right(x) - 1, (x,))


class Loop(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, turns: Any, x: Any) -> Any:
        def goes_on(turn: Any, x: Any) -> Any:
            return turn < turns

        def body(turn: Any, x: Any) -> Any:
            return turn + 1, torch.tanh(self.linear(x))

        return while_loop(goes_on, body, (torch.zeros((), dtype=torch.int64), x))
