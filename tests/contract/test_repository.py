"""Guards over the repository itself: what no other test would notice until it hurts."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagemill_operator.manifest_file import load_manifests

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def tracked(*patterns: str) -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize("folder", ["operator", "kernels", "server", "benchmarks"])
def test_no_folder_of_ours_is_a_package_by_itself(folder: str) -> None:
    """A top-level package named `operator` would shadow the standard library's in every `python -m` from the root."""
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_tests_are_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_the_standard_librarys_operator_is_found_from_the_root() -> None:
    program = "import operator; print(operator.add(1, 2))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


def test_the_import_layers_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", done.stdout)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_what_the_operator_accepts(path: Path) -> None:
    assert load_manifests(str(path))


def test_every_example_program_is_run_by_a_test() -> None:
    users = "\n".join(path.read_text(encoding="utf-8") for path in tracked("tests/**.py"))
    programs = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
    imported = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py"))
    assert programs
    for name in programs:
        assert f"{name}.py" in users or f"from {name} import" in imported, f"nothing runs examples/{name}.py"


def links(page: Path) -> Iterator[str]:
    """Where a page links to inside the repository; code is no link."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z][a-z+.-]*:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", tracked("*.md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name} links to {target}"
        assert ROOT in [there, *there.parents], f"{page.name} links out of the repository: {target}"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{page.name} links to {target}"


def test_nothing_names_the_machine_it_was_written_on() -> None:
    places = (str(ROOT), f"{Path.home()}/", "/".join(["", "work", ""]))
    for path in tracked():
        text = path.read_bytes().decode("utf-8", errors="replace")
        for place in places:
            assert place not in text, f"{path.relative_to(ROOT)} names {place}"


def test_no_file_is_larger_than_a_reader_takes() -> None:
    """Two ideas in one file show as length first; data, locks and golden files are not read from top to bottom."""
    for path in tracked("*.py"):
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= 500, f"{path.relative_to(ROOT)} has {lines} lines: it holds two ideas"


def test_every_module_says_what_it_is() -> None:
    for path in tracked("pagemill/*.py", "operator/**.py", "server/**.py", "kernels/**.py", "benchmarks/*.py"):
        first = path.read_text(encoding="utf-8").lstrip()[:3]
        assert first in ("", '"""'), f"{path.relative_to(ROOT)} begins without a docstring"
