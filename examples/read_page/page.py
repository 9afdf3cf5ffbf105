"""Draws the page that the demo reads: four lines of dark text on paper."""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

LINES = (
    ("Deep learning compiler", 44),
    ("Invoice 2024-0917 total $1,284.50", 34),
    ("The quick brown fox jumps over", 34),
    ("the lazy dog at 7:45 pm.", 34),
)
PAPER, INK = (250, 248, 240), (20, 20, 60)


def draw_page() -> Image.Image:
    """Draw a 760 x 360 RGB page with the four lines of `LINES`."""
    page = Image.new("RGB", (760, 360), PAPER)
    draw = ImageDraw.Draw(page)
    top = 30
    for text, size in LINES:
        draw.text((40, top), text, INK, ImageFont.load_default(size))
        top += size + 36
    return page
