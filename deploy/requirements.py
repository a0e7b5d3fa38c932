"""Print the dependencies of pyproject.toml, with the extras named on the command line."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
lists = [
    project["dependencies"],
    *(project["optional-dependencies"][name] for name in sys.argv[1:]),
]
sys.stdout.write("\n".join(requirement for each in lists for requirement in each) + "\n")
