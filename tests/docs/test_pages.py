"""Every page is linked, every link leads somewhere, and README stays on two screens."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.project import REPOSITORY

PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted((REPOSITORY / "docs").glob("*.md"))
SCREEN = 50  # lines


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)#\s]+)", text) if not link.startswith("http")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in links(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not missing


def test_index_links_every_page() -> None:
    linked = set(links((REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")))
    made = {"index.md", "messages.md"}  # the second one by `python -m tests.docs.messages`; git ignores it
    assert {page.name for page in (REPOSITORY / "docs").glob("*.md")} - made <= linked


def test_readme_fits_on_two_screens() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 2 * SCREEN


def test_the_page_on_adapters_links_every_adapter() -> None:
    linked = set(links((REPOSITORY / "docs" / "your-trainer.md").read_text(encoding="utf-8")))
    assert {f"adapters/{path.name}" for path in (REPOSITORY / "docs" / "adapters").glob("*.py")} <= linked


def threads(path: Path) -> list[tuple[str, str]]:
    """Return (file, function) for every thread that a module starts: what it runs, or what makes an executor."""
    tree, name, found = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(REPOSITORY).as_posix(), []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and called == "Thread":
            [target] = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "target"]
            found.append((name, target.rpartition(".")[2]))
        elif called == "ThreadPoolExecutor":
            found += [(name, function.name) for function in functions if node in ast.walk(function)]
    return found


def test_the_page_on_reliability_lists_every_thread() -> None:
    page = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| [^|]+ \| `([\w/]+\.py)`, `(\w+)`;", page, re.MULTILINE)
    modules = [path for folder in ("reference", "suite") for path in (REPOSITORY / folder).rglob("*.py")]
    assert sorted(listed) == sorted(thread for path in modules for thread in threads(path))
