"""The server, asked by OpenAI's client, and by clients that do it wrong."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import openai
import pytest
from llm_server import serving
from pydantic import BaseModel

from kernelyard_llm import LanguageModel

MESSAGES = [{"role": "user", "content": "the"}]


@pytest.fixture(scope="module")
def url(llama: LanguageModel) -> Iterator[str]:
    with serving(llama, sequences=4, waiting=4, max_body=20_000, body_timeout=1.0) as each:
        yield each


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as each:
        yield each


@pytest.fixture(scope="module")
def answer(llama: LanguageModel) -> str:
    return llama.chat(MESSAGES, max_new_tokens=6)


def post(url: str, body: bytes) -> tuple[int, dict]:
    try:
        with urlopen(Request(f"{url}/v1/chat/completions", body), timeout=30) as found:
            return found.status, json.load(found)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def metric(url: str, name: str) -> float:
    with urlopen(f"{url}/metrics") as found:
        lines = found.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"kernelyard_llm_{name}{{"))


def test_models(client: openai.OpenAI, url: str) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id) == model
    with urlopen(f"{url}/health") as found:
        assert json.load(found) == {"status": "ok"}
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_chat_is_answered_as_the_model_answers(client: openai.OpenAI, answer: str) -> None:
    found = client.chat.completions.create(model="model", messages=MESSAGES, max_tokens=6, temperature=0)
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", answer, "length")
    assert found.usage is not None
    assert found.usage.completion_tokens == 6
    parts = [{"type": "text", "text": "t"}, {"type": "text", "text": "he"}]
    asked = [{"role": "user", "content": parts}]
    again = client.chat.completions.create(model="model", messages=asked, max_completion_tokens=6, temperature=0)
    assert again.choices[0].message.content == answer


def test_a_stream_has_the_same_text(client: openai.OpenAI, answer: str) -> None:
    how = {"model": "model", "messages": MESSAGES, "max_tokens": 6, "temperature": 0, "n": 2}
    stream = client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True})
    texts, reasons, usage = ["", ""], [None, None], None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [answer, answer]
    assert reasons == ["length", "length"]
    assert usage is not None
    assert usage.completion_tokens == 12


def test_completions(client: openai.OpenAI, llama: LanguageModel) -> None:
    ids = llama.encode("the thing")
    expected = llama.decode(llama.generate(ids, 5, ignore_eos=True))
    found = client.completions.create(
        model="model", prompt=["the thing", "the"], max_tokens=5, temperature=0, logprobs=2
    )
    assert found.choices[0].text == expected
    assert [choice.index for choice in found.choices] == [0, 1]
    scores = found.choices[0].logprobs
    assert scores is not None
    assert scores.token_logprobs is not None
    assert len(scores.token_logprobs) == 5
    tokens = client.completions.create(model="model", prompt=ids, max_tokens=5, temperature=0)
    assert tokens.choices[0].text == expected


def test_stop_bias_and_probabilities(client: openai.OpenAI, answer: str, llama: LanguageModel) -> None:
    how = {"model": "model", "messages": MESSAGES, "temperature": 0, "max_tokens": 6}
    stopped = client.chat.completions.create(**how, stop=[answer[1]]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (answer[: answer.index(answer[1])], "stop")
    (wanted,) = llama.encode("z")
    biased = client.chat.completions.create(**how, logit_bias={str(wanted): 100}, logprobs=True, top_logprobs=3)
    assert biased.choices[0].message.content == "zzzzzz"
    scores = biased.choices[0].logprobs
    assert scores is not None
    assert scores.content is not None
    assert [(each.token, len(each.top_logprobs)) for each in scores.content] == [("z", 3)] * 6
    texts = [
        client.chat.completions.create(**{**how, "temperature": 2.0}, seed=7, top_p=0.9).choices[0].message.content
        for _ in range(2)
    ]
    assert texts[0] == texts[1]


class Verdict(BaseModel):
    """Describe what an answer has to be."""

    answer: Literal["yes", "no"]
    certain: bool


SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 9}, "unit": {"enum": ["m", "s"]}},
    "required": ["count", "unit"],
    "additionalProperties": False,
}


def test_an_answer_has_the_form_of_a_class(client: openai.OpenAI) -> None:
    found = client.chat.completions.parse(model="model", messages=MESSAGES, response_format=Verdict, max_tokens=300)
    (choice,) = found.choices
    assert isinstance(choice.message.parsed, Verdict)
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_fits_a_schema(stream: bool, client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "length", "strict": True, "schema": SCHEMA}}
    how = {"model": "model", "messages": MESSAGES, "response_format": form, "max_tokens": 300, "stream": stream}
    found = client.chat.completions.create(**how)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in found)
    else:
        text = found.choices[0].message.content
    length = json.loads(text)
    assert set(length) == {"count", "unit"}
    assert length["count"] in range(10)
    assert length["unit"] in SCHEMA["properties"]["unit"]["enum"]


def test_an_answer_is_an_object(client: openai.OpenAI, llama: LanguageModel) -> None:
    (end,) = llama.encode("}")
    how = {"model": "model", "messages": MESSAGES, "temperature": 0, "max_tokens": 6, "logit_bias": {str(end): 100}}
    assert client.chat.completions.create(**how).choices[0].message.content == "}" * 6
    formed = client.chat.completions.create(**how, response_format={"type": "json_object"}).choices[0]
    assert json.loads(formed.message.content or "") == {}
    assert formed.finish_reason == "stop"
    plain = client.chat.completions.create(**how, response_format={"type": "text"})
    assert plain.choices[0].message.content == "}" * 6


def test_a_form_that_cannot_be_read_is_refused(client: openai.OpenAI) -> None:
    for schema in ({"type": "no such type"}, {"$ref": "#/nowhere"}):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with pytest.raises(openai.BadRequestError, match="form of the answer"):
            client.chat.completions.create(model="model", messages=MESSAGES, response_format=form)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[]", 400),
        (b'{"messages": [], "stop": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
        (b"{}", 400),
        (b'{"messages": []}', 400),
        (b'{"messages": [{"role": "user"}]}', 400),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 0}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"a": 1}}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}}', 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "model": "other"}', 404),
        (json.dumps({"messages": [{"role": "user", "content": "x " * 2000}]}).encode(), 400),
        (b'{"messages": "' + b"x" * 30_000 + b'"}', 413),
    ],
)
def test_wrong_requests_are_errors_of_the_protocol(url: str, body: bytes, status: int) -> None:
    found, answer = post(url, body)
    assert found == status
    assert answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


def test_other_paths_are_not_found(url: str) -> None:
    with pytest.raises(HTTPError) as caught:
        urlopen(f"{url}/v1/other")
    with caught.value as error:
        assert (error.code, "error" in json.load(error)) == (404, True)


def test_a_body_that_does_not_come_is_given_up(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_is_computed_for_a_client_that_left(url: str, stream: bool) -> None:
    before = metric(url, "cancelled_total")
    body = json.dumps({"prompt": "the", "max_tokens": 500, "stream": stream, "logit_bias": {"0": -100, "2": -100}})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode() + body.encode())
        eventually(lambda: metric(url, "running") == 1)
    eventually(lambda: metric(url, "running") == 0)
    assert metric(url, "cancelled_total") == before + 1
    assert metric(url, "pages_used") == 0


def test_more_than_may_wait_are_refused(url: str) -> None:
    body = json.dumps({"messages": MESSAGES, "n": 9}).encode()
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(f"{url}/v1/chat/completions", body))
    with caught.value as error:
        assert (error.code, json.load(error)["error"]["type"]) == (429, "rate_limit_error")
        assert int(error.headers["retry-after"]) >= 1
    eventually(lambda: metric(url, "running") == metric(url, "waiting") == metric(url, "pages_used") == 0)


def test_many_at_once(client: openai.OpenAI, answer: str) -> None:
    def ask(_: int) -> str | None:
        found = client.chat.completions.create(model="model", messages=MESSAGES, max_tokens=6, temperature=0)
        return found.choices[0].message.content

    with ThreadPoolExecutor(4) as threads:  # as many may wait
        assert list(threads.map(ask, range(16))) == [answer] * 16
