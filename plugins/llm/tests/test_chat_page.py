"""The chat page in chromium: it streams an answer, and its console stays empty."""

from __future__ import annotations

import shutil

import pytest
from llm_server import serving

from kernelyard_llm import LanguageModel

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


def test_a_talk(llama: LanguageModel) -> None:
    from playwright.sync_api import expect, sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "no chromium is installed; apt-get install chromium"
    said: list[str] = []
    with serving(llama) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 900, "height": 700})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda sent: said.append(sent.url) if not sent.url.startswith(url) else None)
        page.goto(url)
        expect(page.locator("#model")).to_have_text("model")
        page.get_by_label("Message").fill("Who are you? <b>")
        page.keyboard.press("Enter")
        expect(page.locator("article.user")).to_have_text("Who are you? <b>")
        expect(page.locator("#send")).to_have_text("Send", timeout=60_000)
        expect(page.locator("article.assistant")).not_to_be_empty()
        page.get_by_text("New chat").click()
        expect(page.locator("article")).to_have_count(0)
        page.route("**/v1/chat/completions", lambda route: None)  # an answer that never comes
        page.get_by_label("Message").fill("Go on")
        page.locator("#send").click()
        expect(page.locator("#send")).to_have_text("Stop")
        page.locator("#send").click()
        expect(page.locator("#send")).to_have_text("Send")
        browser.close()
    assert said == []
