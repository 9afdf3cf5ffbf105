"""`kernelyard quantize`: quantize a model on calibration data, and save it as ONNX or as an artifact."""

from __future__ import annotations

from pathlib import Path

import click

from kernelyard.cli.model_files import ARTIFACT_SUFFIX, check_output
from kernelyard.cli.options import CompileOptions, compile_options, json_option
from kernelyard.cli.output import print_json, say

OBSERVERS = ("minmax", "percentile", "entropy")


@click.command("quantize")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), help="Folder of calibration data: .npz files, a feed each.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write: .onnx, or .kyar compiled."
)
@click.option("--scheme", default="auto", metavar="NAME", help="auto, static, dynamic, int8_weights, int4_weights, ...")
@click.option("--observer", type=click.Choice(OBSERVERS), default="minmax", help="How ranges are found.")
@click.option("--max-error", type=float, metavar="SHARE", help="Keep the worst layers in float32 up to this error.")
@click.option("--keep", multiple=True, metavar="LAYER", help="Keep this layer in float32; may be repeated.")
@compile_options
@json_option
def command(
    model: Path,
    data: Path | None,
    output: Path,
    scheme: str,
    observer: str,
    max_error: float | None,
    keep: tuple[str, ...],
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Quantize MODEL, with ranges from the feeds in a folder, and show the error of each layer."""
    from functools import partial

    from kernelyard.driver.compile import compile as compile_model
    from kernelyard_quantize.feeds import read_files, read_folder
    from kernelyard_quantize.quantize_model import quantize

    check_output(output, model)  # known before the work is done
    arguments = how.arguments()
    common = {name: arguments[name] for name in ("target", "backends", "options")}
    quantized = quantize(
        model,
        None if data is None else partial(read_files, read_folder(data)),
        scheme,
        observer=observer,  # pyright: ignore[reportArgumentType]  click has checked it
        max_error=max_error,
        keep=keep,
        **common,
    )
    if output.suffix == ARTIFACT_SUFFIX:
        compile_model(quantized, **arguments).save(output)
    else:
        quantized.save(output)
    if as_json:
        print_json({"file": str(output), **quantized.quantization.to_json()})
        return
    for line in [*str(quantized.quantization).splitlines(), f"saved {output}"]:
        say(line)
