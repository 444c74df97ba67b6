"""The shape of `mega/` as DESIGN.md section 3 and STYLE.md draw it, read from its sources.

An import inside a function counts like any other; one under `if TYPE_CHECKING:` does not.
"""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path

import pytest

SPEC = find_spec("mega")  # found, not imported: a cycle would keep these tests from running
assert SPEC is not None
HOME = Path(str(SPEC.origin)).parent
SOURCES = sorted(HOME.rglob("*.py"))

LEAVES = "errors options pool_options urls events context control version cpu"

#: Who may import whom inside mega, from the bottom to the top. Every module may also import
#: its own package. An adapter is one part of its own: it imports no other adapter.
MAY_IMPORT = {
    "version": "",
    "errors": LEAVES,
    "options": LEAVES,
    "pool_options": LEAVES,
    "urls": LEAVES,
    "events": LEAVES,
    "context": LEAVES,
    "control": LEAVES,
    "cpu": LEAVES,
    "wire": LEAVES,
    "cron": LEAVES,
    "declare": f"{LEAVES} wire cron",
    "stores": f"{LEAVES} wire",
    "ports": f"{LEAVES} wire stores",
    "handles": f"{LEAVES} wire declare ports",
    "runtime": f"{LEAVES} wire cron declare ports handles",
    "adapters": f"{LEAVES} wire ports",
    "ops": f"{LEAVES} wire ports",
    "testing": f"{LEAVES} wire ports handles runtime adapters",
    "decorators": f"{LEAVES} handles",
    "cpu_handle": f"{LEAVES} declare handles",
    "group": f"{LEAVES} wire cron declare handles decorators cpu_handle",
    "enqueue": f"{LEAVES} wire declare ports handles cpu_handle runtime",
    "dead_letters": f"{LEAVES} wire ports",
    "cli": f"{LEAVES} wire declare ports handles runtime ops",
    "app": f"{LEAVES} wire cron declare ports handles runtime adapters ops testing "
    "group enqueue dead_letters cli",
    "__init__": f"{LEAVES} wire handles cpu_handle group app",
    "__main__": f"{LEAVES} wire cli app",
}

ONLY_IN_ADAPTERS = {"asyncio", "nats", "redis", "subprocess"}

#: What `import mega` leaves alone; each is imported by whoever needs it, when it does.
LATE = {
    "aiohttp",
    "attr",
    "croniter",
    "nats",
    "opentelemetry",
    "pydantic",
    "redis",
    "stamina",
    "starlette",
    "trio",
    "uvicorn",
    "uvloop",
}

PUBLIC = (
    "app",
    "context",
    "control",
    "cpu",
    "cpu_handle",
    "cron",
    "dead_letters",
    "errors",
    "events",
    "group",
    "handles",
    "options",
    "pool_options",
    "ports",
    "testing",
    "urls",
)

MOST_LINES = 400
MOST_LINES_OF_APP = 300
MOST_LINES_OF_A_RUN = 40


@dataclass(frozen=True)
class Import:
    """One import statement: the module that it names, and where it stands."""

    target: str
    place: str


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def place(path: Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(HOME.parent)}:{getattr(node, 'lineno', 1)}"


def name_of(path: Path) -> str:
    parts = path.relative_to(HOME.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in SOURCES}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Walk as `ast.walk` does, without what only type checkers see."""
    yield node
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            for other in getattr(child, "orelse", []):
                yield from walk(other)
        else:
            yield from walk(child)


def targets(node: ast.AST, module: str, *, is_package: bool) -> list[str]:
    """Return the modules that a node imports; `from a import b` names a.b if that is one."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=base, names=names, level=level):
            if level:
                parts = module.split(".")
                kept = parts[: len(parts) - level + is_package]
                base = ".".join([*kept, *([base] if base else [])])
            within = [f"{base}.{alias.name}" for alias in names]
            return [name if name in MODULES else str(base) for name in within]
        case ast.Call(args=[ast.Constant(value=str(name))]) if "import" in ast.unparse(node.func):
            return [name]
    return []


@cache
def imports_of(path: Path) -> list[Import]:
    module, is_package = name_of(path), path.stem == "__init__"
    return [
        Import(target, place(path, node))
        for node in walk(tree_of(path))
        for target in targets(node, module, is_package=is_package)
    ]


def part_of(module: str) -> str:
    """Return the row of the table: `wire` for mega.wire.payload, `__init__` for mega."""
    return module.split(".")[1] if "." in module else "__init__"


#: What more than one adapter needs.
SHARED = ("claiming", "scopes")


def adapter_of(module: str) -> str:
    """Return `nats` for mega.adapters.nats.pull, `memory` for mega.adapters.memory_stores."""
    return ".".join(module.split(".")[2:3]).partition("_")[0]


def is_allowed(module: str, target: str) -> bool:
    part, other = part_of(module), part_of(target)
    if part == other == "adapters":
        return adapter_of(module) in ("", adapter_of(target)) or adapter_of(target) in SHARED
    return part == other or other in MAY_IMPORT.get(part, "").split()


def inner_imports(path: Path) -> list[Import]:
    return [found for found in imports_of(path) if found.target.split(".")[0] == "mega"]


def refuse(offences: Iterable[str], advice: str) -> None:
    """Fail with a line for each offence, and what to do about them."""
    if lines := sorted(set(offences)):
        pytest.fail("\n".join([advice, *(f"  {line}" for line in lines)]), pytrace=False)


# -- imports


def test_every_module_has_a_row_in_the_table() -> None:
    refuse(
        (place(path) for name, path in MODULES.items() if part_of(name) not in MAY_IMPORT),
        "Add the new part of mega to MAY_IMPORT, at its height, and to DESIGN.md section 3:",
    )


def test_imports_go_down_the_table() -> None:
    refuse(
        (
            f"{found.place} {part_of(name)} may not import {found.target}"
            for name, path in MODULES.items()
            for found in inner_imports(path)
            if not is_allowed(name, found.target)
        ),
        "Move what is shared to a lower module, or hand it over as an argument (MAY_IMPORT says "
        "who may import whom):",
    )


def test_the_table_has_no_cycle() -> None:
    above = {part: set(allowed.split()) - {part} for part, allowed in MAY_IMPORT.items()}
    leaves = set(LEAVES.split())
    TopologicalSorter(
        {part: allowed - leaves if part in leaves else allowed for part, allowed in above.items()}
    ).prepare()


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {
        name: {found.target for found in inner_imports(path)} for name, path in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        ring: list[str] = error.args[1][::-1]
        steps = [
            next(found.place for found in inner_imports(MODULES[one]) if found.target == other)
            + f" imports {other}"
            for one, other in pairwise(ring)
        ]
        advice = "Break the cycle: move what both need to a module below them."
        pytest.fail("\n  ".join([advice, *steps]), pytrace=False)


def test_only_adapters_touch_the_outside_world() -> None:
    refuse(
        (
            f"{found.place} imports {found.target}"
            for name, path in MODULES.items()
            if part_of(name) != "adapters"
            for found in imports_of(path)
            if found.target.split(".")[0] in ONLY_IN_ADAPTERS
        ),
        "Use anyio, or put it behind a port and do it in mega/adapters:",
    )


def test_import_mega_is_light() -> None:
    code = "import sys; before = {*sys.modules}; import mega; print(*{*sys.modules} - before)"
    path = f"{HOME.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "mega.app" in loaded
    heavy = {name.split(".")[0] for name in loaded} & LATE
    adapters = {name for name in loaded if name.startswith("mega.adapters.")}
    refuse(
        heavy | adapters,
        "Import these inside the function that needs them, `import mega` must not load them:",
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import nats.aio", ["nats.aio"]),
        ("def f():\n    from mega.app import App", ["mega.app"]),
        ("from mega import cli, App", ["mega.cli", "mega"]),
        ("from . import cli", ["mega.cli"]),
        ("from .app import App", ["mega.app"]),
        ("importlib.import_module('redis')", ["redis"]),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", ["b"]),
        ("if typing.TYPE_CHECKING:\n    import a", []),
    ],
)
def test_what_counts_as_an_import(code: str, expected: list[str]) -> None:
    found = (targets(node, "mega.group", is_package=False) for node in walk(ast.parse(code)))
    assert list(chain.from_iterable(found)) == expected


# -- sizes


def test_modules_are_small() -> None:
    limits = dict.fromkeys(SOURCES, MOST_LINES) | {HOME / "app.py": MOST_LINES_OF_APP - 1}
    sizes = {path: len(path.read_text().splitlines()) for path in SOURCES}
    refuse(
        (
            f"{place(path)} has {sizes[path]} lines, at most {limit} are allowed"
            for path, limit in limits.items()
            if sizes[path] > limit
        ),
        "Split the module by responsibility, don't raise the cap:",
    )


def test_what_runs_a_job_is_short() -> None:
    path = HOME / "runtime" / "execution.py"
    methods = {
        node.name: node
        for execution in tree_of(path).body
        if isinstance(execution, ast.ClassDef) and execution.name == "Execution"
        for node in execution.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert "run" in methods, f"{place(path)}: Execution.run is what runs one job; name it here"
    refuse(
        (
            f"{place(path, node)} Execution.{name} has {length} lines"
            for name, node in methods.items()
            if (length := (node.end_lineno or 0) - node.lineno + 1) >= MOST_LINES_OF_A_RUN
        ),
        f"Keep each step of a run under {MOST_LINES_OF_A_RUN} lines, name a part of it:",
    )


# -- what a module says of itself


def test_every_module_says_what_it_owns() -> None:
    refuse(
        (
            place(path)
            for path in SOURCES
            if tree_of(path).body and not ast.get_docstring(tree_of(path))
        ),
        "Begin the module with a docstring: what it owns, and what it must not know:",
    )


@pytest.mark.parametrize("name", ["mega", *(f"mega.{part}" for part in PUBLIC)])
def test_public_modules_list_their_names(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None)
    assert names is not None, f"{place(MODULES[name])}: write the public names into __all__"
    missing = [known for known in names if not hasattr(module, known)]
    assert not missing, f"{place(MODULES[name])}: __all__ names {missing}, which are not there"
    assert len(names) == len(set(names)), f"{place(MODULES[name])}: __all__ names one twice"


def test_the_root_exports_all_that_it_imports() -> None:
    names = importlib.import_module("mega").__all__
    imported = {
        alias.asname or alias.name
        for node in tree_of(HOME / "__init__.py").body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(names) == imported, "mega/__init__.py: import and export the same names"


# -- what is not there


def is_filler(node: ast.stmt) -> bool:
    """Tell `...`, `pass` and `raise NotImplementedError` from a statement that does something."""
    if isinstance(node, ast.Raise):
        return "NotImplementedError" in ast.unparse(node)
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def is_promise(node: ast.AST) -> bool:
    """Whether a body is not expected: a Protocol, an overload, an abstract method."""
    bases = [ast.unparse(base) for base in getattr(node, "bases", [])]
    marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", [])]
    return any("Protocol" in base for base in bases) or any(
        mark.endswith(("overload", "abstractmethod")) for mark in marks
    )


def is_stub(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            return all(is_filler(statement) for statement in body)
        case ast.ClassDef(body=body):
            return all(is_filler(statement) for statement in body) and not ast.get_docstring(node)
    return False


def stubs(node: ast.AST) -> Iterator[ast.AST]:
    if is_promise(node):
        return
    if is_stub(node):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from stubs(child)


def test_nothing_is_a_stub() -> None:
    refuse(
        (
            f"{place(path, node)} {getattr(node, 'name', '')}"
            for path in SOURCES
            for node in stubs(tree_of(path))
        ),
        "Write the body, or leave the name out until it does something:",
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(): ...", 1),
        ("async def f():\n    'text'\n    raise NotImplementedError('later')", 1),
        ("class A: pass", 1),
        ("class A(Exception):\n    'An error.'", 0),
        ("class A(Protocol):\n    def f(self): ...", 0),
        ("@overload\ndef f(): ...", 0),
        ("class A:\n    x = 1\n    def f(self):\n        pass", 1),
        ("def f():\n    'text'\n    return 1", 0),
    ],
)
def test_what_counts_as_a_stub(code: str, expected: int) -> None:
    assert expected == len(list(stubs(ast.parse(code))))


def test_nothing_prints() -> None:
    refuse(
        (
            place(path, node)
            for path in SOURCES
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ),
        "Log it, or write to the stream that the command line hands over:",
    )
