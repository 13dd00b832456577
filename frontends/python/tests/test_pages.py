"""The blocks of docs/getting-started.md, docs/concepts.md, docs/running.md and the quick start of README.md run in order, as they are printed.

A block of Python is a file, named in its first line. A block of sh runs in the folder of these files. The first block of text after it
has lines of its output, in order: other lines may stand between them, and a line ``…`` is not compared. Other blocks of text are pictures.
With UPDATE_EXPECT=1, lines that differ from the output only in numbers and at their ends are written into the page.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[3]

# How the README starts the command, which this package has.
FROM_CHECKOUT = "cargo run --release --locked -p symmc-cli -- "


def read_blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def first_missing_line(expected: str, output: str) -> str | None:
    """The first line that the output does not have after those before it."""
    rest = iter(output.splitlines())
    for line in expected.splitlines():
        if line not in ("", "…") and not any(line in other for other in rest):
            return line
    return None


def with_numbers_of(expected: str, output: str) -> str:
    """The lines, each with the numbers of the next line of the output that has its words in order."""
    lines, first, found = [], 0, output.splitlines()
    for line in expected.splitlines():
        words = (r"[\d.]+".join(map(re.escape, re.split(r"[\d.]+", word))) for word in line.split())
        pattern = re.compile((r"\s*" if line[:1].isspace() else "") + r"\s+".join(words))
        matches = ((i, pattern.search(found[i])) for i in range(first, len(found)))
        position, match = next(((i, match) for i, match in matches if match), (0, None))
        if line not in ("", "…") and match:
            first, line = position + 1, match.group()
        lines.append(line)
    return "".join(f"{line}\n" for line in lines)


class Pages(unittest.TestCase):
    def run_script(self, script: str, folder: pathlib.Path) -> str:
        """The output of a block of sh, with the environment's own commands."""
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": path, "HOME": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        self.assertEqual(ran.returncode, 0, ran.stdout)
        return ran.stdout

    def run_page(self, name: str, is_selected=lambda text: True) -> None:
        """Runs the selected blocks of a page, in a folder that has the programs of the repository."""
        output = None
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            for link in ["examples", "tests"]:
                (folder / link).symlink_to(ROOT / link)
            for language, text in read_blocks((ROOT / name).read_text()):
                if language == "sh" and not is_selected(text):
                    output = None
                    continue
                with self.subTest(text):
                    if language == "python":
                        file, _ = re.fullmatch(r"# (\w+\.py)\n(.*)", text, re.DOTALL).groups()
                        (folder / file).write_text(text)
                    elif language == "sh":
                        output = self.run_script(text.replace(FROM_CHECKOUT, "symmc "), folder)
                    elif language == "text" and output is not None:
                        if os.environ.get("UPDATE_EXPECT"):
                            path = ROOT / name
                            path.write_text(path.read_text().replace(text, with_numbers_of(text, output)))
                            output = None
                            continue
                        line = first_missing_line(text, output)
                        self.assertIsNone(line, f"not in the output:\n{output}")
                        output = None

    def test_numbers_are_taken_from_the_output(self):
        output = "a: 5 µs, modelled\nmore\n  b  12.5 KiB  c\nlast 7\n"
        self.assertEqual(with_numbers_of("a: 3 µs\n…\nb 1 KiB  c\nnone 1\nlast 1\n", output), "a: 5 µs\n…\nb  12.5 KiB  c\nnone 1\nlast 7\n")

    def test_getting_started(self):
        missing = [name for name in ["torch", "onnx"] if importlib.util.find_spec(name) is None]
        if missing:
            self.skipTest(f"not installed: {', '.join(missing)}")
        self.run_page("docs/getting-started.md")

    def test_concepts(self):
        self.run_page("docs/concepts.md")

    def test_running(self):
        # Launchers start a model of the user there. tests/reliability/trials.py runs the launchers.
        self.run_page("docs/running.md", lambda text: "torchrun" not in text)

    def test_readme(self):
        self.run_page("README.md", lambda text: text.startswith(FROM_CHECKOUT))


if __name__ == "__main__":
    unittest.main()
