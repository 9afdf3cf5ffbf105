"""A model behind onnxruntime and FastAPI, as one writes it by hand: `python fastapi_server.py MODEL.onnx`."""

from __future__ import annotations

import socket
import sys

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

session = onnxruntime.InferenceSession(sys.argv[1])
app = FastAPI()


class Request(BaseModel):
    """Rows of the only input."""

    x: list[list[float]]


class Answer(BaseModel):
    """Rows of the only output."""

    y: list[list[float]]


@app.post("/infer")
def infer(request: Request) -> Answer:
    """Run the model."""
    (y,) = session.run(None, {"h0": np.array(request.x, np.float32)})
    return Answer(y=np.asarray(y).tolist())


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}\nready", flush=True)
    uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run([listener])
