"""Deploy compiled models: exports for other systems, and predictors for engines that spread work."""

from __future__ import annotations

from kernelyard_deploy.errors import ExportError as ExportError
from kernelyard_deploy.export import FORMS as FORMS
from kernelyard_deploy.export import export as export
from kernelyard_deploy.facts import Facts as Facts
from kernelyard_deploy.manifest import Manifest as Manifest
from kernelyard_deploy.manifest import describe as describe
from kernelyard_deploy.manifest import read_manifest as read_manifest
from kernelyard_deploy.predictor import Predictor as Predictor
from kernelyard_deploy.wheel import export_wheel as export_wheel
