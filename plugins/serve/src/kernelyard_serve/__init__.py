"""Serve compiled models: the Open Inference Protocol over HTTP and gRPC."""

from __future__ import annotations

from kernelyard_serve.batching import BatchPolicy as BatchPolicy
from kernelyard_serve.errors import ServeError as ServeError
from kernelyard_serve.http_app import create_app as create_app
from kernelyard_serve.options import ServeOptions as ServeOptions
from kernelyard_serve.repository import ModelRepository as ModelRepository
from kernelyard_serve.repository import find_artifacts as find_artifacts
