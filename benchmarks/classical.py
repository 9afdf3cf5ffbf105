"""Time pipelines of scikit-learn, LightGBM and XGBoost beside onnxruntime, in turns: one row, and ten thousand.

    python benchmarks/classical.py               all pipelines; prints a table in Markdown
    python benchmarks/classical.py -k forest     those with a name that contains "forest"

Both run the same ONNX file by the same calls (`kernelyard_ort_compat` has onnxruntime's names), on one thread. Before
a pipeline is timed, its labels must be the same. A time is the best of the rounds, in which the two take turns; the
ratio is onnxruntime's time over ours. Needs scikit-learn, skl2onnx, onnxmltools, lightgbm and xgboost.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import helper

warnings.simplefilter("ignore")

FEATURES, TRAINING_ROWS, CLASSES = 20, 2000, 3
BATCHES = (1, 10_000)
ROUNDS = {1: 15, 10_000: 5}
CALLS = {1: 300, 10_000: 1}
OPSETS = {"": 17, "ai.onnx.ml": 3}
FARTHEST = 5e-3  # that numbers of regressors and scores may lie apart, of the largest
MOST_LABELS_APART = 1e-4  # of the rows: scores that tie in float32
# scikit-learn's own annotations say that these are texts.
WITH_PROBABILITIES: dict[str, Any] = {"probability": True, "random_state": 0}
ONE_START: dict[str, Any] = {"n_init": 1, "random_state": 0}

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Pipeline:
    """name: in the table. make: returns an estimator. kind: of its data: classes, numbers, positive, mixed, texts."""

    name: str
    make: Callable[[], Any]
    kind: str = "classes"


def pipelines() -> list[Pipeline]:
    """Return the pipelines, each in the form in which it is commonly used."""
    from lightgbm import LGBMClassifier, LGBMRegressor
    from sklearn import cluster, ensemble, linear_model, naive_bayes, neighbors, neural_network, svm
    from sklearn.compose import ColumnTransformer
    from sklearn.decomposition import PCA
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
    from xgboost import XGBClassifier, XGBRegressor

    def columns() -> Any:
        parts = [("numbers", StandardScaler(), [0, 1, 2]), ("codes", OneHotEncoder(handle_unknown="ignore"), [3, 4])]
        return make_pipeline(ColumnTransformer(parts), linear_model.LogisticRegression())

    return [
        Pipeline("random forest", lambda: ensemble.RandomForestClassifier(100, random_state=0)),
        Pipeline("random forest regressor", lambda: ensemble.RandomForestRegressor(100, random_state=0), "numbers"),
        Pipeline("extra trees", lambda: ensemble.ExtraTreesClassifier(100, max_depth=12, random_state=0)),
        Pipeline("gradient boosting", lambda: ensemble.GradientBoostingClassifier(random_state=0)),
        Pipeline("AdaBoost", lambda: ensemble.AdaBoostClassifier(random_state=0)),
        Pipeline("isolation forest", lambda: ensemble.IsolationForest(random_state=0)),
        Pipeline("LightGBM classifier", lambda: LGBMClassifier(random_state=0, verbose=-1)),
        Pipeline("LightGBM regressor", lambda: LGBMRegressor(random_state=0, verbose=-1), "numbers"),
        Pipeline("XGBoost classifier", lambda: XGBClassifier(random_state=0, n_jobs=1)),
        Pipeline("XGBoost regressor", lambda: XGBRegressor(random_state=0, n_jobs=1), "numbers"),
        Pipeline("SVC, probabilities", partial(svm.SVC, **WITH_PROBABILITIES)),
        Pipeline("SVR", svm.SVR, "numbers"),
        Pipeline("NuSVC", lambda: svm.NuSVC(nu=0.3)),
        Pipeline(
            "scaled logistic regression", lambda: make_pipeline(StandardScaler(), linear_model.LogisticRegression())
        ),
        Pipeline("min-max scaled ridge", lambda: make_pipeline(MinMaxScaler(), linear_model.Ridge()), "numbers"),
        Pipeline("SGD classifier", lambda: linear_model.SGDClassifier(random_state=0)),
        Pipeline("nearest neighbours", lambda: neighbors.KNeighborsClassifier(5)),
        Pipeline("naive Bayes", naive_bayes.GaussianNB),
        Pipeline("perceptron", lambda: neural_network.MLPClassifier((64, 32), max_iter=50, random_state=0)),
        Pipeline("k-means", partial(cluster.KMeans, 8, **ONE_START)),
        Pipeline("PCA, logistic regression", lambda: make_pipeline(PCA(8), linear_model.LogisticRegression())),
        Pipeline("columns by kind", columns, "mixed"),
        Pipeline("TF-IDF, SGD", lambda: make_pipeline(TfidfVectorizer(), linear_model.SGDClassifier()), "texts"),
    ]


def data_of(kind: str, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and what is to be learned; `mixed` has small whole numbers in some columns."""
    rng = np.random.default_rng(seed)
    if kind == "texts":
        words = np.array([f"{first}{second}" for first in "bdfgklmn" for second in ("ara", "eno", "ilu", "opi", "uta")])
        chosen = rng.integers(len(words), size=(rows, 8))
        return np.array([" ".join(words[row]) for row in chosen], object)[:, None], chosen.min(1) // 4 % CLASSES
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    if kind == "mixed":
        x[:, 3:5] = rng.integers(0, 6, (rows, 2))
    numbers = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + x[:, 3] + 0.1 * rng.normal(size=rows)
    return x, numbers if kind == "numbers" else np.digitize(numbers, (-0.8, 0.8))


def to_onnx(estimator: Any, kind: str) -> bytes:
    """Return a fitted estimator as an ONNX file whose number of rows is open."""
    from skl2onnx import common, convert_sklearn

    module = type(estimator).__module__.partition(".")[0]
    shape = [None, 1 if kind == "texts" else FEATURES]
    if module in ("lightgbm", "xgboost"):
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        convert = getattr(onnxmltools, f"convert_{module}")
        return convert(estimator, initial_types=[("x", FloatTensorType(shape))]).SerializeToString()
    type_ = common.data_types.StringTensorType if kind == "texts" else common.data_types.FloatTensorType
    options = {"zipmap": False} if hasattr(estimator, "predict_proba") else {}
    made = convert_sklearn(
        estimator, initial_types=[("x", type_(shape))], options={id(estimator): options}, target_opset=OPSETS
    )
    for node in made.graph.node:
        if node.op_type == "StringNormalizer":  # the locale that it takes by default is not on every machine
            node.attribute.append(helper.make_attribute("locale", "C"))
    return made.SerializeToString()


def sessions_of(model: bytes) -> tuple[Any, Any]:
    """Return the file in onnxruntime and in ours, on one thread each."""
    import onnxruntime

    import kernelyard_ort_compat

    made = []
    for module in (onnxruntime, kernelyard_ort_compat):
        options = module.SessionOptions()
        options.intra_op_num_threads = 1
        made.append(module.InferenceSession(model, options, providers=["CPUExecutionProvider"]))
    return made[0], made[1]


def disagreement(theirs: Sequence[Any], ours: Sequence[Any]) -> str:
    """Return how results differ beyond what rounding explains, or ""."""
    for a, b in zip(theirs, ours, strict=True):
        if isinstance(a, list):
            a, b = (np.array([list(row.values()) for row in each]) for each in (a, b))
        if a.shape != b.shape:
            return f"shape {b.shape}, not {a.shape}"
        if a.dtype.kind in "iuOU":
            apart = float(np.mean(a != b))
            if apart > MOST_LABELS_APART:
                return f"{apart:.2%} of the labels"
        elif len(a) and np.abs(a - b).max() > FARTHEST * max(1.0, float(np.abs(a).max())):
            return f"numbers up to {np.abs(a - b).max():.1e} apart"
    return ""


def best_times(runs: Sequence[Callable[[], Any]], rounds: int, calls: int) -> list[float]:
    """Return the best time of a call of each, taken in turns."""
    best = [math.inf] * len(runs)
    for _ in range(rounds):
        for number, run in enumerate(runs):
            began = time.perf_counter()
            for _ in range(calls):
                run()
            best[number] = min(best[number], (time.perf_counter() - began) / calls)
    return best


def measured(pipeline: Pipeline) -> tuple[list[float], str]:
    """Return the ratio for each batch, and how results differ."""
    x, y = data_of(pipeline.kind, TRAINING_ROWS, 0)
    fitted = pipeline.make().fit(x[:, 0] if pipeline.kind == "texts" else x, y)
    theirs, ours = sessions_of(to_onnx(fitted, pipeline.kind))
    ratios, problem = [], ""
    for batch in BATCHES:
        feeds = {theirs.get_inputs()[0].name: data_of(pipeline.kind, batch, 1)[0]}
        problem = problem or disagreement(theirs.run(None, feeds), ours.run(None, feeds))
        runs = [lambda session=session, feeds=feeds: session.run(None, feeds) for session in (theirs, ours)]
        their_time, our_time = best_times(runs, ROUNDS[batch], CALLS[batch])
        ratios.append(their_time / our_time)
    return ratios, problem


def main(arguments: Sequence[str]) -> int:
    """Print the table; the exit status is 1 where results differ, or a pipeline is refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="part", default="")
    chosen = [each for each in pipelines() if parser.parse_args(arguments).part in each.name]
    print("| pipeline | 1 row | 10,000 rows | results |\n|---|---:|---:|---|")
    every: list[list[float]] = []
    failures = 0
    for pipeline in chosen:
        try:
            ratios, problem = measured(pipeline)
        except Exception as error:  # a refusal is a line of the table
            failures += 1
            print(f"| {pipeline.name} | | | {type(error).__name__}: {' '.join(str(error).split())[:300]} |", flush=True)
            continue
        every.append(ratios)
        failures += bool(problem)
        print(f"| {pipeline.name} | {ratios[0]:.2f} | {ratios[1]:.2f} | {problem or 'same'} |", flush=True)
    if every:
        means = np.exp(np.log(every).mean(0))
        print(f"| geometric mean of {len(every)} | {means[0]:.2f} | {means[1]:.2f} | |")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
