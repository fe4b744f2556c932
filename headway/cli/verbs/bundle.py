"""`headway bundle`: makes the folder by which images without headway, on hosts without Python, run jobs."""

import argparse
import sys
from pathlib import Path

from headway.cli.terminal import fail, progress


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Put it where all nodes see it, and set its path as `bundle` in the cluster's `scheduler.options`. "
        "Its name has the hash of its content: the same version of headway makes the same bundle."
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder in which to make it, for example one that all nodes see (default: this one)",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="FOLDER",
        help="folder with the pinned wheels, where no package index can be reached (default: pip downloads them)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="cp311-x86_64",
        help="a Python and machine that images have; again for more (default: CPython 3.10 to 3.14 on x86_64 and aarch64)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the bundle's path. 1 if it cannot be made, 2 for an unknown Python."""
    from headway.infra.bundle import ANY, BundleError, make_bundle, pinned  # noqa: PLC0415  only this verb needs it

    known = {wheel.target for wheel in pinned()} - {ANY}
    if unknown := [each for each in args.only if each not in known]:
        print(f"headway: `--only {unknown[0]}` is none of {', '.join(sorted(known))}", file=sys.stderr)
        return 2

    try:
        bundle, is_new = make_bundle(args.output, args.wheels, progress, args.only)
    except (BundleError, OSError) as error:
        return fail(str(error), 1)
    print(bundle)
    if not is_new:
        print("it exists already, unchanged", file=sys.stderr)
    return 0
