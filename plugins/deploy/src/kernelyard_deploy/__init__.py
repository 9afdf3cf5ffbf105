"""Deploy compiled models: exports for other systems, and predictors for engines that spread work."""

from __future__ import annotations

from kernelyard_deploy.batch_predict import predict_table as predict_table
from kernelyard_deploy.engines import beam_model_handler as beam_model_handler
from kernelyard_deploy.engines import spark_predict_fn as spark_predict_fn
from kernelyard_deploy.errors import BatchJobError as BatchJobError
from kernelyard_deploy.errors import ExportError as ExportError
from kernelyard_deploy.facts import Facts as Facts
from kernelyard_deploy.forms import FORMS as FORMS
from kernelyard_deploy.forms import export as export
from kernelyard_deploy.manifest import Manifest as Manifest
from kernelyard_deploy.manifest import describe as describe
from kernelyard_deploy.manifest import read_manifest as read_manifest
from kernelyard_deploy.predictor import Predictor as Predictor
from kernelyard_deploy.wheel import export_wheel as export_wheel
