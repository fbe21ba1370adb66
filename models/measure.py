"""How well a model file continues Python: whether greedy text falls into a loop, and how much of it is valid syntax.

    python models/measure.py [FILE ...] [--samples 5]

Twenty beginnings of functions, classes and blocks, up to a line's end but without it, since a newline belongs to a
token with the indentation that follows. Without a FILE, the bundled model.

- Loops: a greedy text of 200 tokens for each of the first ten prompts. One loops where it ends in the same passage
  three times in a row, of 40 characters in all or more. Digits count as equal, since counting up is a loop as well.
- Syntax: for every prompt, texts of 120 tokens drawn at temperature 0.7, with the same seed each time. The last line,
  which may have been cut off, is left out; then `ast.parse` reads prompt and text.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import warnings

import edgelm_runtime

PROMPTS = (
    "def read_json(path):",
    "def mean(values):",
    "class Stack:\n    def __init__(self):",
    "import os\nimport sys\n\ndef main():",
    "def count_words(text):",
    "class TestParser(unittest.TestCase):\n    def test_empty(self):",
    "for name in sorted(names):",
    "def send(self, data):",
    "try:\n    import sqlite3\nexcept ImportError:",
    "with open(filename, 'rb') as f:",
    "def is_leap(year):",
    "class Point:\n    def __init__(self, x, y):",
    "if __name__ == '__main__':",
    "def find_files(root, pattern):",
    "async def fetch(reader, writer):",
    "def parse_args(argv=None):",
    "while True:\n    line = stream.readline()",
    "def __eq__(self, other):",
    "class Cache(dict):\n    def get(self, key, default=None):",
    "def to_hex(data):",
)
LOOP_PROMPTS, LOOP_TOKENS, LOOP_CHARACTERS, REPEATS = 10, 200, 40, 3
SYNTAX_TOKENS, TEMPERATURE = 120, 0.7


def loops(text: str) -> bool:
    """Whether `text` ends in the same passage several times in a row, digits aside."""
    text = re.sub(r"\d+", "0", text)
    for length in range(1, len(text) // REPEATS + 1):
        # The end may lie anywhere within the passage: what counts is the distance at which the text repeats.
        repeated = max(REPEATS * length, LOOP_CHARACTERS)
        if repeated <= len(text) and text[-repeated + length :] == text[-repeated:-length]:
            return True
    return False


def parses(text: str) -> bool:
    """Whether `text` without its last line is Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            ast.parse(text.rpartition("\n")[0])
    except (SyntaxError, ValueError):
        return False
    return True


def main() -> None:
    """Print both shares for each file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--samples", type=int, default=5, help="texts per prompt, for the syntax")
    parser.add_argument("--show", action="store_true", help="print the greedy texts")
    given = parser.parse_args()
    for file in given.files or [None]:
        with edgelm_runtime.load(*([file] if file else [])) as lm:
            greedy = [
                prompt + lm.generate(prompt, max_new_tokens=LOOP_TOKENS, temperature=0).text
                for prompt in PROMPTS[:LOOP_PROMPTS]
            ]
            drawn = [
                prompt + result.text
                for prompt in PROMPTS
                for result in lm.generate(
                    prompt, n=given.samples, max_new_tokens=SYNTAX_TOKENS, temperature=TEMPERATURE, seed=0
                )
            ]
        without = sum(not loops(text) for text in greedy)
        valid = sum(parses(text) for text in drawn)
        if given.show:
            for text in greedy:
                sys.stdout.write(f"--- {'loops' if loops(text) else 'does not loop'}\n{text}\n")
        print(
            f"{file or 'bundled model'}: {without} of {LOOP_PROMPTS} greedy texts without a loop; "
            f"{valid} of {len(drawn)} drawn texts are valid syntax ({valid / len(drawn):.1%})"
        )


if __name__ == "__main__":
    main()
