"""The stub file of the module, without PyTorch."""

import ast
import inspect
import pathlib
import unittest

import symmc
from symmc import _symmc


class Stubs(unittest.TestCase):
    """The stub file says what the module has."""

    def setUp(self):
        path = pathlib.Path(symmc.__file__).parent / "_symmc.pyi"
        self.tree = ast.parse(path.read_text())

    def test_every_name_is_there_with_its_parameters(self):
        missing = []
        names = {node.name for node in self.tree.body if hasattr(node, "name")}
        constants = {node.target.id for node in self.tree.body if isinstance(node, ast.AnnAssign)}
        names |= {name for name in constants if not name.startswith("__")}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                self.compare(node, getattr(_symmc, node.name), missing, skip=0)
            if isinstance(node, ast.ClassDef) and node.name != "SupportsDLPack":
                self.compare_class(node, getattr(_symmc, node.name), missing)
        public = {name for name in dir(_symmc) if not name.startswith("__")} | {"SupportsDLPack"}
        self.assertEqual(public, names)
        exported = next(node for node in self.tree.body if isinstance(node, ast.Assign))
        self.assertEqual(sorted(ast.literal_eval(exported.value)), sorted(_symmc.__all__))
        self.assertEqual(missing, [])

    def compare_class(self, node, found, missing):
        stated = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        if not issubclass(found, Exception):
            has = {name for name in vars(found) if not name.startswith("__")}
            self.assertEqual(has, {name for name in stated if not name.startswith("__")}, node.name)
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and not item.decorator_list and item.name != "__new__":
                self.compare(item, getattr(found, item.name), missing, skip=1)

    def compare(self, node, found, missing, skip):
        arguments = node.args
        stated = [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs][skip:]
        stated += [a.arg for a in (arguments.vararg, arguments.kwarg) if a]
        try:
            has = [name for name in inspect.signature(found).parameters if name != "self"]
        except ValueError:
            return
        if sorted(stated) != sorted(has):
            missing.append((node.name, stated, has))

    def test_the_package_is_typed(self):
        self.assertTrue((pathlib.Path(symmc.__file__).parent / "py.typed").is_file())


if __name__ == "__main__":
    unittest.main()
