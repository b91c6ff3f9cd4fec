"""Data flows one way: a room imports only rooms above it, and the core needs no tool of the command line."""

import ast
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[1] / "src" / "gloronet"
ORDER = (
    *("errors", "npz", "schedules", "config", "presets", "zoo", "data", "operators", "layers", "models", "program"),
    *("margins", "testing", "net", "losses", "train", "run", "attacks", "smoothing", "certify", "averaged"),
    *("relaxed", "estimator", "lower", "proof", "export", "report", "folder", "serve", "verbs", "reproduce", "compare"),
    *("answers", "show", "voice", "cli"),
)
DOORS = {"__init__", "__main__"}
"""The front doors import what they like; nothing in the house imports them."""
EDGE = {"tyro", "tomli_w", "pooch", "art", "onnx", "onnxruntime"}
NEVER = {"torchvision", "pickle", "cPickle", "dill", "cloudpickle", "joblib"}

FILES = sorted(HOUSE.rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(HOUSE))


def room(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> list[str]:
    """Dotted names of everything imported below this node; `from gloronet import net` is gloronet.net."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written out in full"
            module = node.module or ""
            names += [f"{module}.{alias.name}" for alias in node.names] if module == "gloronet" else [module]
    return names


def at_module_level(tree: ast.Module) -> list[str]:
    """What importing the file imports: not what only a function's body does."""
    skip = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    names, left = [], list(tree.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += imported(node)
        elif not isinstance(node, skip):
            left += [child for child in ast.iter_child_nodes(node) if not isinstance(child, skip)]
    return names


def test_every_room_has_its_place():
    rooms = {room(path) for path in FILES} - DOORS
    assert rooms <= set(ORDER), f"say in DESIGN.md and here where {rooms - set(ORDER)} stands"
    assert len(FILES) > 40


@pytest.mark.parametrize("path", [p for p in FILES if room(p) not in DOORS], ids=name)
def test_a_room_imports_only_rooms_above_it(path):
    here = room(path)
    for target in imported(ast.parse(path.read_text(encoding="utf-8"))):
        parts = target.split(".")
        if parts[0] != "gloronet" or (target == "gloronet.__version__" and here in ("export", "folder", "answers")):
            continue
        assert len(parts) > 1, f"{name(path)} imports the front door"
        assert parts[1] in ORDER, f"{name(path)} imports {target}, which is no room"
        assert ORDER.index(parts[1]) <= ORDER.index(here), f"{name(path)} imports {target}, a room below it"


@pytest.mark.parametrize("path", [p for p in FILES if room(p) not in ("cli", "__main__")], ids=name)
def test_the_core_imports_no_tool_of_the_edge(path):
    names = {n.split(".")[0] for n in at_module_level(ast.parse(path.read_text(encoding="utf-8")))}
    assert not names & EDGE


@pytest.mark.parametrize("path", [p for p in FILES if room(p) != "serve"], ids=name)
def test_only_the_service_imports_a_web_server(path):
    names = at_module_level(ast.parse(path.read_text(encoding="utf-8")))
    assert not {n.split(".")[0] for n in names} & {"fastapi", "uvicorn", "starlette", "pydantic"}
    assert not [n for n in names if n.startswith("gloronet.serve")]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_of_pickle_or_torchvision_anywhere(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {n.split(".")[0] for n in imported(tree)} & NEVER
    # The two doors through which pickle comes in by another name.
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("torch", "load"), ("torch", "save")}, name(path)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant), name(path)
            assert node.value.value is False, name(path)


def test_the_checker_trusts_nobody():
    """An auditor runs it with NumPy and the standard library alone."""
    path = HOUSE / "proof" / "checker.py"
    if not path.exists():
        pytest.skip("there is no proof/checker.py yet")
    names = {n.split(".")[0] for n in imported(ast.parse(path.read_text(encoding="utf-8")))}
    assert names <= set(sys.stdlib_module_names) | {"numpy"}
