"""The page in chromium: it paints at once, keys and pointer do what they should, and nothing is written to the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from view_models import network, report_of

import kernelyard as ky
from kernelyard_view.build import Build
from kernelyard_view.measure import build_of
from kernelyard_view.page import view_page
from kernelyard_view.watch_passes import WatchPasses

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "no chromium is installed; apt-get install chromium"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(params=["light", "dark"])
def open_page(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """`open_page(builds)`: the page, once it has painted; the console must stay empty."""
    page = browser.new_page(viewport={"width": 1300, "height": 800}, color_scheme=request.param)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda sent: said.append(sent.url) if not sent.url.startswith("file://") else None)

    def opened(builds: list[Build]) -> Page:
        file = tmp_path / "page.html"
        file.write_text(view_page(builds), encoding="utf-8")
        page.goto(file.as_uri())
        page.wait_for_function("window.firstPaint")
        return page

    yield opened
    page.close()
    assert said == []


def compiled(title: str, backends: list[str]) -> Build:
    watch = WatchPasses()
    exe = ky.compile(network(), backends=backends, instruments=[watch])
    return build_of(exe, title, {"x": np.ones((4, 64), np.float32)}, 2, watch.changes, {"gflops": 90.0, "gbytes": 9.0})


def test_ten_thousand_ops_are_painted_searched_and_moved(open_page: Any) -> None:
    page = open_page([Build("large", report_of(10_000))])
    assert page.evaluate("builds[0].nodes.length") == 10_000
    page.keyboard.press("/")
    page.keyboard.type("layers.9998/")
    page.wait_for_function("byId('count').textContent === '1 op'")
    page.keyboard.press("Enter")
    assert page.locator("#details dd").first.text_content() == "/layers.9998/floor"
    assert "expected <tanh>" in page.locator("#details .reason").inner_text()
    before = page.evaluate("views[0].at.y")
    page.mouse.move(500, 400)
    page.mouse.wheel(0, -700)
    page.wait_for_function(f"views[0].at.y > {before}")
    page.keyboard.press("Escape")
    assert page.locator("#search").input_value() == ""


def test_search_finds_operators_of_the_model(open_page: Any) -> None:
    report = report_of(3)
    names = ["node 'a' (HardSwish)", *(node.name for node in report.nodes[1:])]
    nodes = tuple(replace(node, name=name) for node, name in zip(report.nodes, names, strict=True))
    page = open_page([Build("model", replace(report, nodes=nodes))])
    page.keyboard.press("/")
    page.keyboard.type("hardsw")
    page.wait_for_function("byId('count').textContent === '1 op'")
    page.keyboard.press("Enter")
    assert "HardSwish" in page.locator("#details dd").all_text_contents()


def test_what_is_drawn_has_the_colours_of_its_backends(open_page: Any) -> None:
    page = open_page([Build("model", report_of(12))])
    place = page.evaluate("""() => { const view = views[0], { at, graph, canvas } = view, box = canvas.getBoundingClientRect();
        return [box.x + at.x + (graph.x[1] - graph.w[1] / 2 + 8) * at.k, box.y + at.y + (graph.y[1] + 18) * at.k]; }""")
    painted = page.evaluate(
        """([x, y]) => { const { canvas, ratio } = views[0], box = canvas.getBoundingClientRect();
        return [...canvas.getContext("2d").getImageData((x - box.x) * ratio, (y - box.y) * ratio, 1, 1).data].slice(0, 3); }""",
        place,
    )
    assert painted == page.evaluate("rgb(builds[0].colours.acme)")
    page.mouse.click(*place)
    assert page.locator("#details dd").first.text_content() == "/layers.0/matmul"
    page.keyboard.press("ArrowDown")
    assert page.locator("#details dd").first.text_content() == "/layers.1/matmul"


def test_panels_show_steps_memory_and_passes(open_page: Any) -> None:
    page = open_page([compiled("model", ["dnnl"])])
    assert page.locator("nav button").all_text_contents() == ["Graph", "Steps", "Memory", "Passes"]
    page.click("nav button:text-is('Steps')")
    assert "dnnl" in page.locator("#panel table").inner_text()
    assert "/dense.0/Relu" in page.locator("#panel table").inner_text()
    page.click("nav button:text-is('Memory')")
    assert page.locator("#panel canvas").bounding_box()["height"] > 300
    page.click("nav button:text-is('Passes')")
    assert page.locator("#panel pre .added").count() > 0
    page.click("nav button:text-is('Graph')")
    page.keyboard.press("2")
    assert page.locator("#modes [aria-checked=true]").text_content() == "Time"


def test_two_builds_side_by_side(open_page: Any) -> None:
    page = open_page([compiled("with", ["dnnl"]), compiled("without", [])])
    assert page.locator(".graph h3").all_text_contents() == ["with", "without"]
    page.wait_for_function(
        "views.every(view => Math.abs(view.at.x + view.graph.x[view.graph.first] * view.at.k - view.width / 2) < 2)"
    )
    assert "Differences" in page.locator("nav").inner_text()
    page.keyboard.press("/")
    page.keyboard.type("Softmax")
    page.keyboard.press("Enter")
    assert page.evaluate("views.map(view => view.main)") == page.evaluate("builds.map(b => b.nodes.length - 1)")
    page.click("nav button:text-is('Differences')")
    assert "dnnl.matmul" in page.locator("#panel table").inner_text()
