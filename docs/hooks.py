"""Makes a site of pages that are written to be read in the repository."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """The README is the first page; decisions are in the site without being in its menu."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = LINK.sub(lambda found: f"[{found[1]}]({found[2].removeprefix('docs/')})", text)
    files.append(File.generated(config, "index.md", content=text))
    for file in files.documentation_pages():
        if file.src_uri.startswith("adr/"):
            file.inclusion = file.inclusion.NOT_IN_NAV
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """A link to what is no page of the site keeps its words."""
    folder = Path(page.file.src_uri).parent

    def inside(found: re.Match[str]) -> str:
        target = found[2]
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path = os.path.normpath(folder / target.partition("#")[0])
        return found[0] if files.get_file_from_path(path) else found[1]

    return LINK.sub(inside, markdown)
