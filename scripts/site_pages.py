"""Pages and files of the documentation site that are not in docs/: a hook of MkDocs (`make site`)."""

import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_PAGES = {"index.md": "README.md", "contents.md": "docs/README.md"}
"""Page of the site -> the file whose text it has."""
_LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages above, and every file outside docs/ that a page links to, at the same path below `repository/`."""
    for uri, source in _PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text(encoding="utf-8")))
    linked = {target for file in files.documentation_pages() for target in _outside(file)}
    for target in sorted(linked):
        files.append(File.generated(config, _published(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links at the places that their files have in the site."""
    del config, files
    here = PurePosixPath(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = _target(here, link[2])
        if target.startswith("docs/") and target != "docs/README.md":
            place = target.removeprefix("docs/")
        else:
            place = next((uri for uri, source in _PAGES.items() if source == target), _published(target))
        return link[1] + str(_relative(place, here.parent))

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts)


def _outside(file: File) -> list[str]:
    """Paths in the repository, not in docs/, that a page links to."""
    text = _FENCE.sub("", file.content_string)
    targets = [_target(PurePosixPath(file.src_uri), link) for _, link in _LINK.findall(text)]
    return [target for target in targets if not target.startswith("docs/") and target not in _PAGES.values()]


def _target(page: PurePosixPath, link: str) -> str:
    """Path in the repository that a link of a page leads to."""
    source = PurePosixPath(_PAGES.get(str(page), f"docs/{page}"))
    parts: list[str] = []
    for part in (source.parent / link).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _published(target: str) -> str:
    """Place of a file in the site; source code as text, which browsers show instead of saving it."""
    shown = Path(target).suffix in {".png", ".svg", ".json", ".txt", ".html"}
    return f"repository/{target}" if shown else f"repository/{target}.txt"


def _relative(place: str, folder: PurePosixPath) -> str:
    ups = len(folder.parts)
    return "../" * ups + place
