"""Limits on the shape of the code: short files, short functions, no empty packages."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "docs", "examples", "training")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path):
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_files_stay_under_400_lines():
    assert [path for path in SOURCES if len(path.read_text().splitlines()) > 400] == []


def test_functions_stay_under_60_lines():
    found = [(path, f.name) for path in SOURCES for f in functions(path) if f.end_lineno - f.lineno >= 60]
    assert found == []


def test_every_module_has_a_docstring():
    modules = [path for folder in ("src", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in modules if not ast.get_docstring(parse(path))] == []


def test_the_package_contains_no_benchmark_except_decode_and_service():
    package = ROOT / "src/filmgate"
    modules = [path.relative_to(package) for path in package.rglob("*.py")]
    found = [path for path in modules if "bench" in str(path) and path.parts[:2] != ("pipeline", "bench")]
    assert sorted(found) == [Path("cli/bench.py"), Path("cli/bench_service.py")]


def test_no_module_has_a_name_without_meaning():
    names = {p.stem for p in SOURCES}
    assert names.isdisjoint({"utils", "util", "helpers", "common", "misc", "manager"})


def test_no_package_is_empty():
    packages = [p.parent for p in (ROOT / "src").rglob("__init__.py")]
    assert [p for p in packages if len(list(p.rglob("*.py"))) < 2] == []
