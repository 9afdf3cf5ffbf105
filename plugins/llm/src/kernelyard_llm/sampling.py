"""Choose the next token of logits: greedily, or at random among the likely ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelyard_llm.errors import LanguageModelError

_MOST_LIKELY = 4096  # tokens that are sorted first; more only where they are not enough


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; the filters apply in this order.

    temperature: what logits are divided by; 0 chooses the best token. top_k: so many tokens at most (0: all). top_p:
    the most likely ones that together have this share. min_p: none less likely than this share of the best one. seed:
    equal seeds give equal texts. Raises: LanguageModelError for a number out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        ranges = {
            "temperature": (self.temperature, 0 <= self.temperature < np.inf, "0 or more"),
            "top_k": (self.top_k, self.top_k >= 0, "0 or more"),
            "top_p": (self.top_p, 0 < self.top_p <= 1, "more than 0, and 1 at most"),
            "min_p": (self.min_p, 0 <= self.min_p <= 1, "0 to 1"),
            "seed": (self.seed, self.seed is None or self.seed >= 0, "0 or more"),
        }
        for name, (found, is_valid, expected) in ranges.items():
            if not is_valid:
                raise LanguageModelError(f"{name} is out of range", found=found, expected=expected)


class Sampler:
    """Chooses tokens one after the other.

    Example:
        >>> Sampler(Sampling()).choose(np.array([0.5, 2.0, 1.0], np.float32))
        1
    """

    def __init__(self, sampling: Sampling) -> None:
        self._how = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: np.ndarray) -> int:
        """Return a token of logits (vocabulary,)."""
        how = self._how
        if how.temperature == 0:
            return int(logits.argmax())
        tokens = self._likely(logits)
        best = logits[tokens[0]]
        weights = np.exp((logits[tokens] - best).astype(np.float64) / how.temperature)
        kept = len(weights)
        if how.top_p < 1:
            # Of all tokens, also of those that are not among the sorted ones.
            whole = weights.sum() if how.top_k else np.exp((logits - best).astype(np.float64) / how.temperature).sum()
            kept = int(np.searchsorted(np.cumsum(weights), how.top_p * whole)) + 1
        if how.min_p > 0:
            kept = min(kept, int(np.count_nonzero(weights >= how.min_p)))
        sums = np.cumsum(weights[:kept])
        place = int(np.searchsorted(sums, self._random.random() * sums[-1], side="right"))
        return int(tokens[min(place, len(sums) - 1)])

    def _likely(self, logits: np.ndarray) -> np.ndarray:
        """Return the tokens that come into question, the most likely first; equal ones by their number."""
        wanted = self._how.top_k or (logits.size if self._how.top_p == 1 and not self._how.min_p else _MOST_LIKELY)
        if wanted < logits.size:
            found = np.sort(np.argpartition(-logits, wanted - 1)[:wanted])
            found = found[np.argsort(-logits[found], kind="stable")]
            if self._how.top_k or self._is_enough(logits, found):
                return found
        return np.argsort(-logits, kind="stable")

    def _is_enough(self, logits: np.ndarray, found: np.ndarray) -> bool:
        """Return True where the filters keep no token that is not among those found."""
        scaled = (logits - logits[found[0]]).astype(np.float64) / self._how.temperature
        if self._how.min_p > 0 and np.exp(scaled[found[-1]]) < self._how.min_p:
            return True
        weights = np.exp(scaled)
        return bool(self._how.top_p < 1 and weights[found].sum() >= self._how.top_p * weights.sum())
