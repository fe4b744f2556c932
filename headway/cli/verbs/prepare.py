"""`headway prepare`: makes a corpus of token shards from text, for the builtin trainer."""

import argparse
import os
import sys
import time
from pathlib import Path

from headway.cli.terminal import fail
from headway.corpus.prepare import Progress, Request, prepare
from headway.corpus.text import CorpusError
from headway.jobspec.units import parse_bytes
from headway.report import units


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A file `.jsonl` or `.ndjson` has a document on each line, any other file is one document; `.gz` and `.zst` are decompressed. "
        "The result is the same whatever the number of processes. If it is interrupted, run the same command again: shards that are "
        "complete stay. docs/data.md shows a whole example."
    )
    parser.add_argument("inputs", type=Path, nargs="+", metavar="FILE", help="files of text or of JSON lines, in order")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="the corpus's folder, new or unfinished"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        required=True,
        metavar="FILE",
        help="a tokenizer.json of the library tokenizers; none is downloaded",
    )
    end = parser.add_mutually_exclusive_group(required=True)
    end.add_argument("--end", metavar="TOKEN", help="the token after each document, for example `<|endoftext|>`")
    end.add_argument("--no-end", action="store_true", help="put no token between documents")
    parser.add_argument("--field", default="text", metavar="NAME", help="the text's field in JSON lines (default: %(default)s)")
    parser.add_argument("--lines", action="store_true", help="each line of a text file is a document")
    parser.add_argument(
        "--workers",
        type=_count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="number of processes (default: one for each CPU)",
    )
    parser.add_argument(
        "--shard",
        type=_size,
        default=parse_bytes("128MiB"),
        metavar="SIZE",
        help="text of one shard, as the files have it (default: 128MiB)",
    )


def run(args: argparse.Namespace) -> int:
    """Print what the corpus has. 1 when it cannot be made of these inputs, 3 when the folder cannot be written."""
    end = None if args.no_end else args.end
    request = Request(args.inputs, args.output, args.tokenizer, end, args.field, args.lines, args.shard, args.workers)
    began = time.monotonic()
    try:
        index, is_new = prepare(request, lambda progress: _tell(progress, time.monotonic() - began))
    except CorpusError as error:
        return fail(str(error), 1)
    except OSError as error:
        return fail(f"`{args.output}` cannot be written: {error.strerror}", 3)
    shards = "1 shard" if len(index.shards) == 1 else f"{len(index.shards):,} shards"
    print(f"{args.output}: {index.tokens:,} tokens of {index.documents:,} documents in {shards}, {index.dtype}")
    print(
        f"  tokens 0 to {index.largest:,}; a model needs `vocab_size: {index.largest + 1}` or more, the tokenizer has {index.vocab_size:,}"
    )
    if not is_new:
        print("it exists already, unchanged", file=sys.stderr)
    return 0


def _tell(progress: Progress, seconds: float) -> None:
    """Report on stderr: on a terminal one line that changes, else one line when shards of an earlier call were found."""
    is_terminal = sys.stderr.isatty()
    if not is_terminal:
        if progress.found and progress.done == progress.found:
            print(f"{progress.found} of {progress.of} shards are complete already", file=sys.stderr)
        return
    rest = ""
    if progress.new_bytes and progress.done < progress.of:
        left_s = seconds * (progress.all_bytes - progress.done_bytes) / progress.new_bytes
        rest = f", {units.size(progress.new_bytes / seconds)}/s of text, {units.seconds(left_s)} left"
    end = "\n" if progress.done == progress.of else ""
    text = f"{progress.done} of {progress.of} shards, {units.compact(progress.tokens)} tokens{rest}"
    print(f"\r\033[K{text}", end=end, file=sys.stderr, flush=True)


def _count(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 1024):
        raise argparse.ArgumentTypeError(f"`{text}`: expected a whole number from 1 to 1,024")
    return int(text)


def _size(text: str) -> int:
    try:
        size = parse_bytes(text)
    except ValueError:
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"`{text}`: expected a size such as `128MiB`")
    return size
