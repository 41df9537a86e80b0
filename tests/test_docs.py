"""The documentation holds every public name, and leads to every page."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import trackside
from scripts import load

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
INDEX = (DOCS / "index.md").read_text(encoding="utf-8")
PARSED = [ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "src" / "trackside").rglob("*.py"))]


@pytest.fixture(scope="module")
def reference():
    """Return the module that writes the API reference."""
    return load(DOCS / "_ext" / "reference.py")


class TestReference:
    def test_every_public_module(self, reference):
        """Each module of a public package whose path has no underscore has a section, if it defines a name."""
        text = "\n".join(reference.pages().values())
        there = set(re.findall(r"^## (\S+)$", text, re.MULTILINE))
        source = Path(trackside.__file__).parent
        paths = [path.relative_to(source.parent).with_suffix("").parts for path in source.rglob("*.py")]
        modules = {".".join(part for part in parts if part != "__init__") for parts in paths}
        packages = tuple(f"{package}." for package in reference.PACKAGES if package != "trackside")
        public = {name for name in modules if name.startswith(packages) and "._" not in name}
        assert {name for name in public - there if self.names(reference, name)} == set()

    @staticmethod
    def names(reference, module):
        """Return the public names of *module*."""
        return dict(reference.public_modules(module)).get(module, [])

    @pytest.mark.parametrize("package", ["trackside", "trackside.events", "trackside.handlers.models", "trackside.job"])
    def test_every_name(self, reference, package):
        """Each name that a package lists is described, or refers to its description."""
        text = "\n".join(reference.pages().values())
        section = text.split(f"\n## {package}\n", 1)[1].split("\n## ", 1)[0]
        listed = sys.modules[package].__all__ if package in sys.modules else __import__(package, fromlist=["_"]).__all__
        assert listed
        assert {name for name in listed if not re.search(rf"(\.|\* ){re.escape(name)}\b", section)} == set()

    def test_once(self, reference):
        """No name is described twice."""
        text = "\n".join(reference.pages().values())
        described = re.findall(r"^\.\. (?:autoclass|autofunction|py:data):: (\S+)", text, re.MULTILINE)
        assert described
        assert len(described) == len(set(described))


class TestTables:
    def test_versions(self):
        """The page on installing names the lower bound of each library that pyproject.toml asks for."""
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        asked = project[project.index("\ndependencies = [") : project.index("[project.scripts]")]
        bounds = dict(re.findall(r'^[^#]*?"([\w-]+)>=([\d.]+)', asked, re.MULTILINE))
        page = (DOCS / "install.md").read_text(encoding="utf-8")
        named = dict(re.findall(r"\| ([\w-]+) \| (\d[\d.]*) \|", page))
        assert named.items() <= bounds.items()
        assert set(bounds) - set(named) == {"numpy", "opentelemetry-exporter-otlp-proto-http", "requests"}

    def test_variables(self):
        """The page on configuration names each of trackside's variables that the sources read, and no other."""
        sources = Path(trackside.__file__).parent.rglob("*.py")
        read = {
            name for path in sources for name in re.findall(r"\bTRACKSIDE_[A-Z_]+", path.read_text(encoding="utf-8"))
        }
        page = (DOCS / "configuration.md").read_text(encoding="utf-8")
        assert set(re.findall(r"^\| `(TRACKSIDE\w*)`", page, re.MULTILINE)) == read | {"TRACKSIDE"}


class TestNavigation:
    def test_every_page(self):
        """Each page, the generated ones included, is reached from the landing page, once."""
        trees = re.findall(r"```\{toctree\}\n(.*?)```", INDEX, re.DOTALL)
        listed = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
        named = [page for page in listed if "*" not in page and "/" not in page]
        pages = {path.stem for path in DOCS.glob("*.md")} | {"metric-names", "vocabulary"}
        assert sorted(named) == sorted(page for page in pages - {"index"} if not page.startswith("write-"))
        assert {"reference/*", "write-*"} <= set(listed)

    @pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), ROOT / "README.md"], ids=lambda page: page.stem)
    def test_links(self, page):
        """A link leads to a file and a heading that are in the repository, as those who read it there see them."""
        prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        linked = [target for target in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match("[a-z]+:", target)]
        for target in linked:
            name, _, anchor = target.partition("#")
            there = page.parent / name if name else page
            assert there.exists(), target
            if anchor:
                headings = re.findall("^#+ (.*)$", there.read_text("utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, target

    def test_first_paragraph(self):
        """Each page says under its title what it is, before any code, table or further title."""
        openings = {page.stem: page.read_text(encoding="utf-8").split("\n\n", 2)[1] for page in DOCS.glob("*.md")}
        assert {page for page, opening in openings.items() if opening.startswith(("```", "#", "|", "{"))} == set()

    def test_groups(self):
        """The groups are a reader's tasks, in their order."""
        groups = [
            "Get started",
            "Use it with",
            "Understand your job",
            "Operate",
            "Extend",
            "Reference",
            "Project",
        ]
        assert re.findall(r"^:caption: (.*)$", INDEX, re.MULTILINE) == groups


class TestDesign:
    TEXT = (DOCS / "design.md").read_text(encoding="utf-8")

    def test_places(self):
        """Every module and package that the design refers to exists."""
        named = re.findall(r"`([a-z_]+/(?:[\w/]+(?:\.py|/))?)`", self.TEXT)
        assert len(named) > 10
        places = ROOT / "src" / "trackside", ROOT
        assert [path for path in named if not any((place / path).exists() for place in places)] == []

    def test_members(self):
        """Every method that the table of places names is one of the class before its dot."""
        table = re.search(r"^## Where to look\n(.*?)^## ", self.TEXT, re.DOTALL | re.MULTILINE)[1]
        named = re.findall(r"`([A-Z]\w+)\.(\w+)`", table)
        assert len(named) >= 5
        classes = [node for tree in PARSED for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        methods = {(cls.name, node.name) for cls in classes for node in cls.body if isinstance(node, ast.FunctionDef)}
        assert set(named) - methods == set()

    def test_layers(self):
        """The drawing of the layers has each of them, and no other."""
        picture = re.search(r"```text\nsrc/trackside/\n(.*?)```", self.TEXT, re.DOTALL)[1]
        drawn = {line.split()[0].rstrip("/") for line in picture.splitlines()}
        package = ROOT / "src" / "trackside"
        there = {path.name for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert drawn == {name for name in there if name == "__init__.py" or not name.startswith("_")}


class TestSources:
    @pytest.mark.parametrize("folder", ["src", "tests", "tools", "benchmarks", "examples"])
    def test_texts_name_a_thing(self, folder):
        """No docstring, of a field neither, and no comment begins with a question word: it says what something is."""
        sources = [path.read_text("utf-8") for path in (ROOT / folder).rglob("*.py")]
        texts = [
            node.value.value
            for source in sources
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ]
        comments = [found for source in sources for found in re.findall(r"(?m)(?=^(?! *#).*\n *# ?(.*))", source)]
        assert min(len(texts), len(comments)) > 1
        question = re.compile(r"\s*(What|Who|Whose|Which|How|Where|When|Why)\b")
        assert [text for text in (*texts, *comments) if question.match(text)] == []

    def test_one_spelling_of_an_interval(self):
        """A parameter in seconds of how often something happens ends in ``_interval_s``."""
        functions = [node for tree in PARSED for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        public = [
            function for function in functions if not function.name.startswith("_") or function.name == "__init__"
        ]
        named = {given.arg for function in public for given in (*function.args.args, *function.args.kwonlyargs)}
        assert "collect_interval_s" in named
        assert {name for name in named if re.search(r"every_s$|poll_s$|collect_s$", name)} == set()

    def test_timed_ends_say_whether_all_was_done(self):
        """Each ``flush`` and ``close`` that takes a ``timeout_s`` returns whether it did all within that time."""
        functions = [node for tree in PARSED for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        ends = [node for node in functions if node.name in {"flush", "close"} and "timeout_s" in ast.unparse(node.args)]
        assert len(ends) > 20
        assert {ast.unparse(node.returns) for node in ends} == {"bool"}

    def test_cites_only_what_is_here(self):
        """No test and no page refers to a list of requirements or a plan that is not in the repository."""
        paths = [*ROOT.glob("docs/*.md"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "src").rglob("*.py")]
        foreign = re.compile(r"\bR\d{1,2}\b(?! ?[=+*/-])|\bfirst plan\b")
        cited = [path.name for path in paths if path != Path(__file__) and foreign.search(path.read_text("utf-8"))]
        assert cited == []
        files = {
            name
            for path in paths
            for name in re.findall(r"(?<![\w/.])(?:docs|tests|tools|src)/[\w/-]+\.(?:md|py)\b", path.read_text("utf-8"))
        }
        assert len(files) > 20
        assert [name for name in sorted(files) if not (ROOT / name).exists()] == []
