"""Parse command lines of scripts by their own parsers, and run nothing.

Reads `[[script, word, ...], ...]` from standard input, and writes for each what its parser said: "parsed", a sentence
of refusal, "no parser", or "needs MODULE" where the script imports one that is not installed. A script runs as it
would, up to the moment in which its arguments are parsed.
"""

import argparse
import contextlib
import io
import json
import runpy
import sys
from pathlib import Path


class Parsed(BaseException):
    """The arguments are fine; nothing after them may run."""


def parse_only(self, args=None, namespace=None):
    """`ArgumentParser.parse_args`, and then the end."""
    found, more = self.parse_known_args(args, namespace)
    if more:
        self.error(f"unrecognized arguments: {' '.join(more)}")
    raise Parsed


def said(script, words):
    """What the script's parser says of these words."""
    sys.argv, told = [script, *words], io.StringIO()
    sys.path.insert(0, str(Path(script).parent))
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            runpy.run_path(script, run_name="__main__")
    except Parsed:
        return "parsed"
    except SystemExit:
        return told.getvalue().strip().splitlines()[-1]
    except ModuleNotFoundError as missing:
        return f"needs {missing.name}"
    finally:
        sys.path.pop(0)
    return "no parser"


if __name__ == "__main__":
    argparse.ArgumentParser.parse_args = parse_only
    print(json.dumps([said(script, words) for script, *words in json.load(sys.stdin)]))
