"""
Write the page of the event vocabulary from the event classes, each time the documentation is built.

A generated page cannot fall behind the code. Its content comes from the declarations alone: wire name, priority,
docstring, fields, their types and defaults, and the line under a field.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

import trackside.events as vocabulary
from trackside.events._event import EventOfSpan

if TYPE_CHECKING:
    from sphinx.application import Sphinx

INTRODUCTION = """\
# The event vocabulary

Every event that trackside itself publishes, by wire name. This page is generated from the code.

Each event also carries the envelope:

{envelope}

The priority says what is given up first when there is no room for everything: `PROFILE`, then
`ITERATION`, and `LIFECYCLE` last. Whatever is given up is counted. A *derived* event is computed by a model
from other events; models never read it.
"""


def setup(app: Sphinx) -> dict[str, bool]:
    """Have the page written before Sphinx looks for pages."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir, "vocabulary.md")))
    return {"parallel_read_safe": True}


def write(path: Path) -> None:
    """Write the page to *path*, unless it is unchanged."""
    text = page(vocabulary.declared().values())
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def page(classes: Iterable[type[vocabulary.Event]]) -> str:
    """Return the page about those of *classes* that are trackside's own."""
    envelope = bullets(vocabulary.Event)
    own = [cls for cls in classes if cls.wire_name.startswith("trackside.")]
    return "\n".join([INTRODUCTION.format(envelope=envelope), *map(section, own)])


def section(cls: type[vocabulary.Event]) -> str:
    """Return the part of the page about *cls*."""
    facts = [f"`{cls.__name__}`", f"`{cls.priority.name}`", f"version {cls.version}"]
    if cls.derived:
        facts.append("derived")
    parts = [f"## {cls.wire_name}", " · ".join(facts), inspect.getdoc(cls) or "", bullets(cls)]
    return "\n\n".join(filter(None, map(single_quoted, parts))) + "\n"


def bullets(cls: type) -> str:
    return "\n".join(f"- {line}" for line in fields_of(cls))


def fields_of(cls: type) -> Iterator[str]:
    """Yield a line for each field of *cls*; of the envelope, only what *cls* itself declares."""
    lines_under = field_docs(cls)
    envelope = set() if cls is vocabulary.Event else set(attrs.fields_dict(vocabulary.Event))
    for field in attrs.fields(cls):
        if field.name in envelope and field.inherited:
            continue
        line = f"`{field.name}: {type_name(field)}{default(field)}`"
        if field.name in lines_under:
            line += f": {single_quoted(' '.join(lines_under[field.name].split()))}"
        yield line


def type_name(field: attrs.Attribute) -> str:
    return field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))


def default(field: attrs.Attribute) -> str:
    if field.default is attrs.NOTHING or field.name in attrs.fields_dict(EventOfSpan):
        return ""  # the envelope's defaults come from the context and are described in words
    if isinstance(field.default, attrs.Factory):
        return f" = {field.default.factory.__name__}()"
    return f" = {field.default!r}"


def field_docs(cls: type) -> dict[str, str]:
    """Return the lines under the fields of *cls* and its bases, by field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not attrs.has(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
        for declaration, under in itertools.pairwise(body):
            if isinstance(declaration, ast.AnnAssign) and isinstance(under, ast.Expr):
                found[declaration.target.id] = inspect.cleandoc(under.value.value)
    return found


def single_quoted(text: str) -> str:
    """Turn reStructuredText's doubled quotes of code into Markdown's single ones."""
    return text.replace("``", "`")
