"""How the documentation becomes a site: Sphinx with MyST, offline, every warning an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"

project = "aviso-server"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_links_external_new_tab = False
html_theme = "alabaster"
html_theme_options = {
    "description": "Notifications for data-driven workflows",
    "fixed_sidebar": True,
    "page_width": "72rem",
    "sidebar_width": "16rem",
}
html_show_copyright = False
templates_path = ["templates"]
html_copy_source = False
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_favicon = str(DOCS.parent / "src" / "aviso_server" / "web" / "console" / "icon.svg")
highlight_language = "none"

_GROUP = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def prepare(app: Any, name: str, source: list[str]) -> None:
    """Turn links that leave the folder into words, and the tables of the index into the navigation."""
    folder = (DOCS / name).parent

    def within(link: re.Match[str]) -> str:
        words, target = link.groups()
        path = (folder / target.split("#")[0]).resolve()
        if re.match(r"[a-z]+:|#", target) or path.is_relative_to(DOCS):
            return link[0]
        return f"{words} (`{path.relative_to(DOCS.parent)}`)"

    source[0] = _LINK.sub(within, source[0])
    if name == "index":
        for title, section in _GROUP.findall(source[0]):
            pages = [target.removesuffix(".md") for _, target in _LINK.findall(section) if target.endswith(".md")]
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{listed}\n```\n"
    if name == "decisions/README":
        pages = [path.stem for path in sorted(folder.glob("0*.md"))]
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def setup(app: Any) -> dict[str, Any]:
    """Take part in the build."""
    app.connect("source-read", prepare)
    return {"parallel_read_safe": True}
