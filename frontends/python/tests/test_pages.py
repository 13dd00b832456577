"""The blocks of docs/getting-started.md run in order, as they are printed.

A block of Python is a file, named in its first line. A block of sh runs in the folder of these files. A block of text holds lines of the
output of the block of sh before it, in order: other lines may stand between them, and a line ``…`` is not compared.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "getting-started.md"
NEEDED = ["torch", "onnx"]


def read_blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def first_missing_line(expected: str, output: str) -> "str | None":
    """The first line that the output does not have after those before it."""
    rest = iter(output.splitlines())
    for line in expected.splitlines():
        if line not in ("", "…") and not any(line in other for other in rest):
            return line
    return None


class Pages(unittest.TestCase):
    def run_script(self, script: str, folder: pathlib.Path) -> str:
        """The output of a block of sh, with the environment's own commands."""
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        self.assertEqual(ran.returncode, 0, ran.stdout)
        return ran.stdout

    def test_getting_started(self):
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            self.skipTest(f"not installed: {', '.join(missing)}")
        output = ""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for language, text in read_blocks(PAGE.read_text()):
                with self.subTest(text):
                    if language == "python":
                        file, _ = re.fullmatch(r"# (\w+\.py)\n(.*)", text, re.DOTALL).groups()
                        (folder / file).write_text(text)
                    elif language == "sh":
                        output = self.run_script(text, folder)
                    else:
                        self.assertEqual(language, "text")
                        line = first_missing_line(text, output)
                        self.assertIsNone(line, f"not in the output:\n{output}")


if __name__ == "__main__":
    unittest.main()
