"""The site leads to every page: `make site` builds it, and warns of nothing."""

from __future__ import annotations

import re

from distributions import ROOT


def test_every_page_of_docs_is_in_the_navigation() -> None:
    named = re.findall(r"^ +- ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) == {"index.md", *(page.name for page in ROOT.glob("docs/*.md"))}
    assert len(named) == len(set(named))
