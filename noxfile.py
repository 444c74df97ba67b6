"""The checks of the project. `nox` runs all that a change must pass; `nox -l` lists them."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["lint", "types", "package", "tests"]

ROOT = Path(__file__).parent
PYTHONS = ["3.11", "3.12", "3.13"]
OUTSIDE = [
    "tests",
    "benchmarks",
    "examples",
    "docs",
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
    ".ci",
]


@nox.session
def lint(session: nox.Session) -> None:
    """Look at the form of the code."""
    session.install("-q", *_development("ruff"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of the package, and that planted mistakes in calls of it are caught."""
    session.install("-q", ".[test]", *_development("mypy", "pyright"))
    session.run("mypy")
    session.run("pyright")
    session.run("pytest", "-q", "tests/test_typing.py", *session.posargs)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run all tests against the built wheel, in a folder that has no `mega/` of its own."""
    _run_outside(session, "--ignore=tests/test_typing.py", *session.posargs)


@nox.session
def contract(session: nox.Session) -> None:
    """Run only the suites of the ports, each against every adapter."""
    _run_outside(session, "tests/contract", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Kill, freeze and cut for a while: `-- --minutes 60`, `--seed` to do it again."""
    session.chdir(_outside(session))
    session.run("python", "-m", "tests.chaos.driver", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Run only the blocks of README and docs."""
    _run_outside(session, "tests/test_docs.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure mega beside the bare client and two peers, and judge the goals of benchmarks/."""
    session.install("-q", "-r", "benchmarks/requirements.txt", "-e", ".")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def package(session: nox.Session) -> None:
    """Build the distribution as for PyPI, and use it where nothing else is installed."""
    target = Path(session.create_tmp()) / "built"
    shutil.rmtree(target, ignore_errors=True)
    session.install("-q", "build", "twine")
    session.run("python", "-m", "build", "-q", "--outdir", str(target), str(ROOT))
    built = [str(path) for path in target.glob("mega_framework-*")]
    session.run("twine", "check", "--strict", *built)
    session.run("python", "-m", "pip", "install", "-q", *(p for p in built if p.endswith("whl")))
    session.chdir(target)
    session.run("mega", "--help")
    session.run("python", str(ROOT / "examples" / "quickstart.py"), "--check")


def _run_outside(session: nox.Session, *arguments: str) -> None:
    session.chdir(_outside(session))
    session.run("python", "-m", "pytest", "-q", *arguments)


def _outside(session: nox.Session) -> Path:
    """Install the built package, and return a folder with the tests and no `mega/`."""
    folder = Path(session.create_tmp()) / "outside"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in OUTSIDE:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, folder / name)
    session.install("-q", f"{ROOT}[test]")
    return folder


def _development(*names: str) -> list[str]:
    """Return the pinned requirements of those tools, from the `dev` extra."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    pinned: list[str] = project["optional-dependencies"]["dev"]
    return [line for line in pinned if line.split("==")[0].split("[")[0] in names]
