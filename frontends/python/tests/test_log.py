"""The log of the package, without PyTorch."""

import os
import subprocess
import sys
import unittest

import symmc


class Log(unittest.TestCase):
    SESSION = '''
import symmc
program = symmc.from_text("program \\"p\\" ranks 1\\narg %x: f32[4]\\n%y: f32[4] = neg %x\\nreturn %y\\n")
plan = symmc.compile(program)

def open_session():
    symmc.Session(plan, symmc.Group.threads(1)[0]).close()
'''
    LINE = "INFO rank{rank=0}: symmc::session: opened a session on the host"

    def log_of(self, text, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in ("SYMMC_LOG", "RUST_LOG")}
        ran = subprocess.run(
            [sys.executable, "-c", self.SESSION + text], env=environment | variables, capture_output=True, text=True, timeout=60
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stderr

    def test_the_environment_filters_it(self):
        self.assertEqual("", self.log_of("open_session()"))
        for variables in ({"SYMMC_LOG": "info"}, {"RUST_LOG": "hyper=debug,symmc=info"}):
            self.assertIn(self.LINE, self.log_of("open_session()", **variables))

    def test_a_filter_that_cannot_be_read_is_a_warning(self):
        text = self.log_of("open_session()", SYMMC_LOG="loud")
        self.assertIn("RuntimeWarning: symmc writes no log: SYMMC_LOG: unknown level", text)
        self.assertNotIn("symmc::session:", text)

    def test_set_log_changes_it(self):
        text = self.log_of("symmc.set_log('info'); open_session(); symmc.set_log(None); open_session()")
        self.assertEqual(1, text.count(self.LINE), text)
        for filter in ("loud", "symmc::runs=debug", "debug,,x=info"):
            with self.assertRaisesRegex(symmc.InputError, "^filter: unknown (level|target)"):
                symmc.set_log(filter)
        with self.assertRaises(TypeError):
            symmc.set_log(3)


if __name__ == "__main__":
    unittest.main()
