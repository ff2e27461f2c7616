"""Each module and each class of the package has a name of its own, so that a name finds one place."""

import ast
from collections import defaultdict
from pathlib import Path, PurePath

import exactbatch

PACKAGE = Path(exactbatch.__file__).parent
FILES = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]

# Parts that every format or sink has, in a folder of its own.
PARTS = {"__init__", "__main__", "audit", "decoder", "sink", "spec", "writer"}


def is_repeated(modules: list[PurePath]) -> bool:
    """A command may have the name of the module that does its work."""
    return len([module for module in modules if module.parts[0] != "cli"]) > 1


def test_no_two_modules_have_one_name():
    modules = defaultdict(list)
    for path in FILES:
        modules[path.stem].append(path)
    assert {name: found for name, found in modules.items() if is_repeated(found)}.keys() <= PARTS


def test_no_two_classes_have_one_name():
    classes = defaultdict(list)
    for path in FILES:
        for node in ast.parse((PACKAGE / path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(str(path))
    assert {name: found for name, found in classes.items() if len(found) > 1} == {}
