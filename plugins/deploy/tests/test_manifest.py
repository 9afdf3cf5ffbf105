"""Facts and the manifest: what is read from an artifact, and what is written into one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from deployed_model import FACTS, expected

import kernelyard as ky
import kernelyard.ops
from kernelyard.errors import ArtifactCorruptedError, ArtifactError, InputShapeError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard_deploy import ExportError, Facts, Predictor, describe, read_manifest
from kernelyard_deploy.facts import KEY

KEPT = Path(__file__).parents[3] / "tests/plugins/kept_2_0/network.kyar"


def test_the_manifest_follows_from_the_file(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    assert [(each.name, each.inputs, each.outputs) for each in manifest.functions] == [
        ("main", (("x", ("n", 4), "float32"),), (("output_0", ("n", 3), "float32"),))
    ]
    assert (manifest.target, manifest.precision, manifest.nbytes) == ("cpu", "float32", artifact.stat().st_size)
    assert [each.distribution for each in manifest.requires] == ["kernelyard-native-cpu"]
    assert str(manifest.requirements[0]) == f"kernelyard>={ky.__version__}"
    assert len(manifest.needs) == 1
    assert (manifest.facts.name, manifest.facts.author, manifest.facts.license) == ("scorer", "B. Author", "")


def test_a_file_for_several_machines_names_what_all_of_its_variants_need(tmp_path: Path) -> None:
    """The first variant runs on the least machine; the last one has a backend of its own."""
    b = FunctionBuilder()
    weight = np.ones((64, 64), np.float32)
    module = IRModule({"main": b.function(b.op("matmul", b.input("x", (16, 64)), weight))})
    targets = [ky.Target("cpu", mcpu=name) for name in ("x86-64-v2", "x86-64-v3")]
    least, better = (
        ky.compile(module, target=target, backends=backends)
        for target, backends in zip(targets, ([], ["dnnl"]), strict=True)
    )
    assert {node.backend for node in better.report.nodes} == {"dnnl"}
    least.save(tmp_path / "fat.kyar", variants=[better])
    manifest = describe(tmp_path / "fat.kyar", tmp_path / "described.kyar", Facts(name="fat"))
    assert (manifest.target, manifest.variants) == ("cpu mcpu=x86-64-v2", ("cpu mcpu=x86-64-v3",))
    assert {each.distribution for each in manifest.requires} == {"kernelyard-native-cpu", "kernelyard-dnnl"}
    assert manifest.needs == read_manifest(tmp_path / "fat.kyar").needs
    assert manifest.to_json()["variants"] == ["cpu mcpu=x86-64-v3"]
    x = np.ones((16, 64), np.float32)
    np.testing.assert_allclose(ky.load(tmp_path / "described.kyar")(x).numpy(), 64)
    np.testing.assert_allclose(Predictor(tmp_path / "described.kyar")({"x": x})["output_0"], 64)


def test_facts_are_kept_in_the_artifact(artifact: Path, tmp_path: Path) -> None:
    described = tmp_path / "described.kyar"
    manifest = describe(artifact, described, FACTS)
    assert manifest == read_manifest(described)
    assert manifest.facts == FACTS
    assert manifest.sha256 != read_manifest(artifact).sha256
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_allclose(ky.load(described)(x).numpy(), expected(x), rtol=1e-5)
    ky.load(described).save(tmp_path / "again.kyar")
    assert (tmp_path / "again.kyar").read_bytes() == described.read_bytes()


def test_the_same_facts_give_the_same_bytes(artifact: Path, tmp_path: Path) -> None:
    digests = {describe(artifact, tmp_path / f"{number}.kyar", FACTS).sha256 for number in range(2)}
    assert len(digests) == 1


def test_an_artifact_of_an_earlier_release_takes_facts(tmp_path: Path) -> None:
    """Its plugin is not installed: nothing of it is loaded."""
    manifest = describe(KEPT, tmp_path / "kept.kyar", Facts(name="network", sizes={"n": (1, 16)}))
    assert manifest.facts.sizes == {"n": (1, 16)}
    assert {each.distribution for each in manifest.requires} == {"kernelyard-kept", "kernelyard-native-cpu"}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"name": "../etc"}, "name"),
        ({"name": "a b"}, "name"),
        ({"version": "one"}, "version"),
        ({"license": "MIT\nevil: yes"}, "license"),
        ({"sizes": {"n": (4, 2)}}, "sizes['n']"),
        ({"warm_up": ({"n": -1},)}, "warm_up"),
    ],
)
def test_malformed_facts_are_refused(changes: dict[str, object], where: str) -> None:
    with pytest.raises(ExportError) as error:
        Facts(**changes)  # pyright: ignore[reportArgumentType]
    assert error.value.where == where


@pytest.mark.parametrize(
    "facts",
    [
        Facts(batch="m"),
        Facts(sizes={"m": (1, 2)}),
        Facts(warm_up=({},)),
        Facts(sizes={"n": (1, 4)}, warm_up=({"n": 5},)),
    ],
)
def test_facts_that_do_not_fit_the_model_write_nothing(facts: Facts, artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError):
        describe(artifact, tmp_path / "described.kyar", facts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"sizes": 3}', '{"sizes": {"n": [1]}}', '{"warm_up": [3]}', '{"name": 3}']
)
def test_malformed_facts_in_a_file_are_an_error(text: str) -> None:
    with pytest.raises(ExportError) as error:
        Facts.from_metadata({KEY: text})
    assert error.value.code == "KY760"


def test_facts_of_a_newer_release_are_left_out() -> None:
    assert Facts.from_metadata({KEY: json.dumps({"name": "a", "colour": "green"})}) == Facts(name="a")


def test_what_is_no_artifact_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        read_manifest(tmp_path / "none.kyar")
    (tmp_path / "text.kyar").write_text("no artifact")
    with pytest.raises(ArtifactCorruptedError):
        read_manifest(tmp_path / "text.kyar")


def test_sizes_out_of_bounds_are_refused(artifact: Path, tmp_path: Path) -> None:
    describe(artifact, tmp_path / "described.kyar", FACTS)
    predictor = Predictor(tmp_path / "described.kyar")
    assert predictor({"x": np.zeros((64, 4), np.float32)})["output_0"].shape == (64, 3)
    with pytest.raises(InputShapeError) as error:
        predictor({"x": np.zeros((65, 4), np.float32)})
    assert (error.value.where, error.value.expected) == ("x, axis 0 (n)", "1 to 64")


def test_the_declared_sizes_are_prepared(artifact: Path, tmp_path: Path) -> None:
    describe(artifact, tmp_path / "described.kyar", FACTS)
    predictor = Predictor(tmp_path / "described.kyar")
    predictor.warm()
    assert predictor.executable.cache_info()["plans"].entries == 2
    predictor({"x": np.zeros((8, 4), np.float32)})
    assert predictor.executable.cache_info()["plans"].entries == 2


def test_a_model_of_known_sizes_is_prepared(compiled: Callable[..., Path]) -> None:
    predictor = Predictor(compiled(lambda b: b.op("exp", b.input("x", (3,)))))
    predictor.warm()
    assert predictor.executable.cache_info()["plans"].entries == 1


def test_functions_with_loops_are_in_the_manifest(tmp_path: Path) -> None:
    from kernelyard.ir import FunctionBuilder, IRModule, TensorType

    def branch(op: str) -> object:
        b = FunctionBuilder()
        return b.function(b.op(op, b.input("x", (2,))), attrs={"private": True})

    b = FunctionBuilder()
    x, flag = b.input("x", (2,)), b.input("flag", (), "bool")
    main = b.function(b.if_(flag, "then", "otherwise", [x], TensorType((2,), "float32")))
    exe = ky.compile(IRModule({"main": main, "then": branch("exp"), "otherwise": branch("tanh")}), backends=[])
    exe.save(tmp_path / "branches.kyar")
    (function,) = read_manifest(tmp_path / "branches.kyar").functions
    assert [info.name for info in function.inputs] == ["x", "flag"]
