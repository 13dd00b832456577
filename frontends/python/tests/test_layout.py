"""The layout of ``symmc.torch``: which sub-package may import which, as ARCHITECTURE.md ("torch.compile") describes."""

import ast
import graphlib
import pathlib
import unittest

import symmc

PACKAGE = pathlib.Path(symmc.__file__).parent / "torch"

ARROWS = {
    # Below all stages.
    "settings": set(),
    "ranks": set(),
    "graphs": set(),
    # The stages, each of which may use those before it.
    "legalise": {"graphs"},
    "importing": {"settings", "ranks", "graphs"},
    "runtime": {"settings", "ranks", "graphs", "importing"},
    "partition": {"settings", "ranks", "graphs", "legalise", "importing", "runtime"},
    "agreement": {"settings", "ranks", "graphs", "runtime", "partition"},
    "capture": {"settings", "ranks", "graphs", "legalise", "importing", "runtime", "agreement"},
    "inductor": {"settings", "ranks", "graphs", "importing", "runtime"},
}

PREFIX = "symmc.torch."


def imported(path):
    """The modules of ``symmc.torch`` that a file imports, in functions too, as ``package.module``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            # What is imported from a sub-package is one of its modules.
            is_package = base.startswith(PREFIX) and base.count(".") == 2
            names = [f"{base}.{alias.name}" for alias in node.names] if is_package or base == "symmc.torch" else [base]
        else:
            continue
        found.update(name.removeprefix(PREFIX) for name in names if name.startswith((PREFIX, ".")))
    return found


def modules():
    """Each module of a sub-package by its name, with what it imports."""
    return {f"{path.parent.name}.{path.stem}": imported(path) for path in sorted(PACKAGE.glob("*/*.py"))}


class Layout(unittest.TestCase):
    def test_sub_packages_import_only_those_below_them(self):
        self.assertEqual(set(ARROWS), {path.parent.name for path in PACKAGE.glob("*/__init__.py")})
        used = {name: set() for name in ARROWS}
        for module, names in modules().items():
            package = module.partition(".")[0]
            for name in names:
                target = name.partition(".")[0]
                used[package] |= {target} - {package}
                self.assertIn(target, ARROWS[package] | {package}, f"{module} imports {name}")
        self.assertEqual(ARROWS, used, "an arrow that nothing needs")

    def test_no_module_needs_one_that_needs_it(self):
        # Raises where modules import each other.
        order = list(graphlib.TopologicalSorter(modules()).static_order())
        self.assertGreater(len(order), 30)

    def test_each_module_says_what_it_is_for(self):
        for path in PACKAGE.rglob("*.py"):
            self.assertTrue(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path)

    def test_all_modules_are_in_a_sub_package(self):
        self.assertEqual(["__init__.py"], [path.name for path in PACKAGE.glob("*.py")])


if __name__ == "__main__":
    unittest.main()
