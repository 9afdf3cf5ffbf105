"""Is one program faster than the other, or is it noise?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelyard_tune.paired_test import LEAST_PAIRS, compare, signed_rank_p

TIMES = st.lists(st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)), min_size=1, max_size=40)


@given(TIMES)
def test_it_is_the_same_from_the_other_side(pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    there, back = compare(a, b), compare(b, a)
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.p == pytest.approx(back.p)
    assert 0 <= there.p <= 1


def test_few_pairs_prove_nothing() -> None:
    times = np.arange(1.0, LEAST_PAIRS)
    assert compare(times, times * 10).p == 1


def test_noise_is_no_difference_and_a_shift_is_one() -> None:
    random = np.random.default_rng(0)
    false_alarms = sum(compare(random.lognormal(0, 0.1, 30), random.lognormal(0, 0.1, 30)).p < 0.05 for _ in range(400))
    assert 5 <= false_alarms <= 40  # 20 are expected
    slow_turns = random.lognormal(0, 1, 30)  # what slows one turn slows both
    found = compare(slow_turns, slow_turns * 1.05 * random.lognormal(0, 0.01, 30))
    assert found.p < 0.001
    assert found.ratio == pytest.approx(1.05, abs=0.01)


@given(st.lists(st.integers(-20, 20), min_size=8, max_size=60).filter(lambda values: len(set(values) - {0}) > 1))
def test_it_is_wilcoxons_test(values: list[int]) -> None:
    stats = pytest.importorskip("scipy.stats")
    differences = np.array(values, np.float64)
    kept = differences[differences != 0]
    if len(kept) >= LEAST_PAIRS:
        expected = stats.wilcoxon(kept, correction=False, mode="approx").pvalue
        assert signed_rank_p(differences) == pytest.approx(expected, abs=1e-9)
