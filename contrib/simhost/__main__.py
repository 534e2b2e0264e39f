"""`python -m contrib.simhost build HOST ROOT`: make a simulated host, print its config.

HOST is a folder or the name of one below tests/hosts. `remove ROOT` deletes it again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from contrib.simhost.record import SimHostError
from contrib.simhost.tree import build, remove

HOSTS = Path(__file__).parents[2] / "tests" / "hosts"


def parser() -> argparse.ArgumentParser:
    """The two verbs."""
    top = argparse.ArgumentParser(prog="simhost", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("build", help="build HOST in ROOT, print the agent's config")
    make.add_argument("host")
    make.add_argument("root", type=Path)
    make.add_argument(
        "--real-numbers", action="store_true", help="nodes get the numbers of the recording"
    )
    verbs.add_parser("remove", help="delete ROOT").add_argument("root", type=Path)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one verb; 0, or the error's exit code after one line on stderr."""
    args = parser().parse_args(argv)
    try:
        if args.verb == "remove":
            remove(args.root)
            return 0
        folder = Path(args.host) if Path(args.host).is_dir() else HOSTS / args.host
        host = build(folder, args.root, real_numbers=args.real_numbers)
    except SimHostError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    print(host.config(), end="")
    for node in host.nodes:
        print(f"# {node.target} {node.major}:{node.minor} {node.stand_in}".rstrip())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
