"""What the site has besides docs/, as a hook of MkDocs (`hooks` in mkdocs.yml).

Pages that lie elsewhere in the repository, so that people and GitHub find them there, become pages of the site: the
index of results, how to contribute, the changelog. The leaderboard is made of its submissions. Links from file to file
work in the repository; here they are turned so that they work in the site. A `<picture>` follows the browser's
preference; its two images get the fragments by which the theme shows the one of the chosen palette.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {"results/index.md": "reproduced.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""From a file of the repository to a page of the site."""
BOARD, BOARD_PAGE = "results/leaderboard/brfl-v1", "leaderboard/board.html"
"""The submissions, and the sortable page that is made of them."""
LINK_HERE, TABLES_HERE = "<!-- board -->", "<!-- tracks -->"
"""Where in leaderboard.md the link to that page goes, and where the tables of all tracks."""
COLUMNS = "td:nth-child(7) { min-width: 12rem; } td:nth-child(8) { min-width: 9rem; overflow-wrap: anywhere; }"
"""Of the index of results: room for its sentences, none for the names of files."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s:]+)((?:#[^)\s]*)?)\)")
INLINE = re.compile(r"<code>([^<]*)</code>")
OPTION = re.compile(r'((?:^| |<span class="w"> +</span>))(--?[A-Za-z][\w-]*)')
"""An option in code. A narrow window may break a line at its hyphens, and a lone hyphen misleads."""
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img alt="([^"]+)" src="([^"]+)">\s*</picture>'
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository and the page of the leaderboard."""
    from mkdocs.structure.files import File

    from acclimate.leaderboard import page

    for file, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / file)))
    files.append(File.generated(config, BOARD_PAGE, content=page.html(ROOT / BOARD)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links and pictures; put the tables of the leaderboard into its page."""
    uri = page.file.src_uri
    text = relinked(markdown, uri)
    if uri == "leaderboard.md":
        link = f"**[The board: sort it, and look at clients and ranks]({BOARD_PAGE})**"
        text = text.replace(LINK_HERE, link).replace(TABLES_HERE, tracks())
    if uri == PAGES["results/index.md"]:
        text += f"\n<style>{COLUMNS}</style>\n"
        page.meta["hide"] = ["toc"]  # it has one heading: the room is its wide table's
    return PICTURE.sub(palettes, text)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Keep options whole, in commands and in sentences."""
    whole = r'\1<span class="option">\2</span>'
    html = INLINE.sub(lambda match: f"<code>{OPTION.sub(whole, match[1])}</code>", html)
    return re.sub(r'<span class="gp">.*', lambda match: OPTION.sub(whole, match[0]), html)


def palettes(match: re.Match[str]) -> str:
    """A picture as two images, of which the theme shows one; a plot of the gallery is wide."""
    dark, words, light = match.groups()
    wide = "{ .plot }" if light.startswith("gallery/") else ""
    return f"![{words}]({light}#only-light){wide}![{words}]({dark}#only-dark){wide}"


def source(uri: str) -> str:
    """Where in the repository a page of the site lies."""
    return next((file for file, page in PAGES.items() if page == uri), f"docs/{uri}")


def relinked(markdown: str, uri: str) -> str:
    """A page's text with links that work in the site; what is no page of it is named and not linked."""
    folder = posixpath.dirname(source(uri))

    def turned(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/"):
            there = path.removeprefix("docs/")
        elif path in PAGES:
            there = PAGES[path]
        elif text == path:
            return f"`{path}`"
        else:
            around = markdown[max(match.start() - 1, 0) : match.end() + 1]
            return f"{text}: `{path}`" if around[0] + around[-1] == "()" else f"{text} (`{path}`)"
        return f"[{text}]({posixpath.relpath(there, posixpath.dirname(uri) or '.')}{anchor})"

    return LINK.sub(turned, markdown)


def tracks() -> str:
    """The tables of all tracks that have submissions."""
    out = []
    for path in sorted((ROOT / BOARD).glob("*.md")):
        head, _, rest = path.read_text().partition("\n")
        out.append(f"## {head.removeprefix('# ')}\n{rest}")
    return "\n\n".join(out)
