"""A server that speaks OpenAI's protocol: `kernelyard serve --openai MODEL`. Needs `kernelyard-llm[serve]`."""

from __future__ import annotations

from kernelyard_llm.server.app import create_app as create_app
from kernelyard_llm.server.options import ServerOptions as ServerOptions
