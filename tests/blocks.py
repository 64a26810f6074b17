"""The code blocks of a Markdown page. Imports nothing but the standard library: tests/gpu uses it too."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HUB_ID = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"
SERVER_URL = "http://127.0.0.1:8000"
NOT_RUN = re.compile(r"<!-- not run: .{10,} -->")


@dataclass(frozen=True)
class Block:
    """A code block; `reason` is the comment in the line above it that says why it cannot run."""

    language: str
    text: str
    reason: str = ""

    @property
    def commands(self):
        return self.text.splitlines() if self.language == "sh" else []


def read_blocks(markdown):
    """All fenced blocks, and all indented blocks that follow an empty line."""
    fenced = re.compile(r"(?P<above>[^\n]*)\n+```(?P<language>\w*)\n(?P<text>.*?)```", re.DOTALL)
    blocks = [
        Block(m["language"], m["text"].strip(), find_reason(m["above"])) for m in fenced.finditer(markdown)
    ]
    rest = fenced.sub(r"\g<above>\n", markdown)
    for match in re.finditer(r"(?P<above>[^\n]*)\n\n(?P<text>(?: {4}[^\n]*\n)+)", rest):
        text = re.sub(r"^ {4}", "", match["text"], flags=re.MULTILINE).strip()
        language = "python" if re.match(r"import |from ", text) else "sh"
        blocks.append(Block(language, text, find_reason(match["above"])))
    return blocks


def find_reason(line):
    return line if NOT_RUN.fullmatch(line) else ""


BLOCKS = read_blocks((ROOT / "README.md").read_text())
RUN = [block for block in BLOCKS if not block.reason]
COMMANDS = [line for block in RUN for line in block.commands]
PYTHON = [block.text for block in RUN if block.language == "python"]
SDK = [text for text in PYTHON if SERVER_URL in text]
