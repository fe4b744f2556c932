"""Corpora from text: the same bytes from any number of processes and after any kill, and clear errors."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headway.cli.main import main
from headway.corpus.division import Input, Span, divide
from headway.corpus.prepare import UNFINISHED, Request, prepare
from headway.corpus.shard import dtype_of
from headway.corpus.text import CorpusError, documents
from headway.runner.contract import INDEX_NAME, CorpusIndex, from_json

END = "<|end|>"
TEXTS = [f"document {number} says " + "näh und fern " * (number % 7) for number in range(60)]
LIMIT_S = 60


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with a tokenizer of single bytes, and the same documents in three forms."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    lines = "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in TEXTS).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request(
    inputs: Sequence[str | Path], folder: str, *, workers: int = 1, part_bytes: int = 600, lines: bool = False
) -> Request:
    paths = [Path(each) for each in inputs]
    return Request(paths, Path(folder), Path("tokenizer.json"), END, part_bytes=part_bytes, workers=workers, lines=lines)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def texts_of(folder: Path) -> list[str]:
    """Return the documents, split at their ends, without the token after each."""
    index, tokenizer = from_json(CorpusIndex, (folder / INDEX_NAME).read_text()), Tokenizer.from_file("tokenizer.json")
    found = []
    for shard in index.shards:
        tokens = np.fromfile(folder / f"{shard.name}.tokens", "<u2")
        ends = np.fromfile(folder / f"{shard.name}.ends", "<u8")
        parts = np.split(tokens, ends[:-1])
        assert all(part[-1] == index.end for part in parts)
        found += [tokenizer.decode(part[:-1].tolist()) for part in parts]
    return found


def test_corpus_has_all_documents_in_order_and_their_ends(here: Path) -> None:
    index, is_new = prepare(request(["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"], "made"))
    assert is_new
    assert texts_of(here / "made") == TEXTS * 3
    assert (index.documents, index.dtype, index.vocab_size, index.largest) == (180, "uint16", 257, 256)
    assert index.tokens == sum(len(text.encode()) + 1 for text in TEXTS * 3)
    assert not (here / "made" / UNFINISHED).exists()


@pytest.mark.slow
def test_corpus_is_identical_for_any_number_of_processes(here: Path) -> None:
    one, _ = prepare(request(["a.jsonl", "a.jsonl.gz"], "one"))
    prepare(request(["a.jsonl", "a.jsonl.gz"], "three", workers=3))
    assert len(one.shards) > 3
    assert content(here / "one") == content(here / "three")


@pytest.mark.slow
def test_killed_call_is_resumed_and_leaves_no_trace(here: Path) -> None:
    prepare(request(["a.jsonl"], "straight", part_bytes=150))
    command = [sys.executable, "-m", "headway.cli.main", "prepare", "a.jsonl", "-o", "killed", "--tokenizer", "tokenizer.json"]
    with subprocess.Popen([*command, "--end", END, "--workers", "2", "--shard", "150B"], process_group=0) as process:
        until = time.monotonic() + LIMIT_S
        while not list(Path("killed", UNFINISHED).glob("0*.json")):
            assert time.monotonic() < until
            assert process.poll() is None, "it ended before it could be killed"
        process.kill()
        group = process.pid
    while _is_running(group):
        assert time.monotonic() < until, "processes of the killed call go on"
        time.sleep(0.02)
    kept = {path.stem: path.stat().st_mtime_ns for path in Path("killed", UNFINISHED).glob("0*.json")}
    shards = {name: Path("killed", f"{name}.tokens").stat().st_mtime_ns for name in kept}
    prepare(request(["a.jsonl"], "killed", part_bytes=150))
    assert content(here / "killed") == content(here / "straight")
    assert {name: Path("killed", f"{name}.tokens").stat().st_mtime_ns for name in kept} == shards, "made again"


def _is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_complete_corpus_is_not_changed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["prepare", "a.jsonl", "-o", "made", "--tokenizer", "tokenizer.json", "--end", END, "--workers", "1"]
    assert main(words) == 0
    before = content(here / "made")
    capsys.readouterr()
    assert main(words) == 0
    found = capsys.readouterr()
    assert "60 documents in 1 shard, uint16" in found.out
    assert "it exists already, unchanged" in found.err
    assert content(here / "made") == before


def test_text_file_is_one_document_unless_lines_are_requested(here: Path) -> None:
    (here / "b.txt").write_text("one\n\ntwo\n")
    prepare(request(["b.txt"], "file"))
    assert texts_of(here / "file") == ["one\n\ntwo\n"]
    prepare(request(["b.txt"], "lines", lines=True))
    assert texts_of(here / "lines") == ["one", "two"]


def test_end_token_in_a_text_does_not_end_its_document(here: Path) -> None:
    (here / "b.txt").write_text(f"it is {END} of it")
    index, _ = prepare(request(["b.txt"], "made"))
    assert texts_of(here / "made") == [f"it is {END} of it"]
    assert index.documents == 1


def test_documents_follow_each_other_without_an_end_token(here: Path) -> None:
    words = ["prepare", "a.jsonl", "-o", "made", "--tokenizer", "tokenizer.json", "--no-end", "--workers", "1"]
    assert main(words) == 0
    index = from_json(CorpusIndex, Path("made", INDEX_NAME).read_text())
    assert (index.end, index.tokens) == (None, sum(len(text.encode()) for text in TEXTS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("b.jsonl", b'{"text": "a"}\n{"text": \n', "`b.jsonl`, the line at byte 14 is not JSON"),
        ("b.jsonl", b'{"body": "a"}\n', "has no text in `text`, but `body`; name the field with `--field`"),
        ("b.jsonl", b"[1]\n", "has no text in `text`, but list"),
        ("b.txt", b"a\xff", "`b.txt`, byte 1: not UTF-8"),
        ("b.txt", b"", "the inputs have no text"),
        ("b.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)[:-9], "`b.jsonl.gz` cannot be read"),
        ("b.jsonl.zst", b"nothing", "`b.jsonl.zst` cannot be read"),
    ],
)
def test_input_that_is_not_text_is_rejected_at_its_position(here: Path, name: str, raw: bytes, message: str) -> None:
    (here / name).write_bytes(raw)
    with pytest.raises(CorpusError) as refused:
        prepare(request([name], "made"))
    assert message in str(refused.value)
    assert not Path("made", INDEX_NAME).exists()


def test_missing_input_or_tokenizer_is_rejected_by_name(here: Path) -> None:
    (here / "folder").mkdir()
    with pytest.raises(CorpusError, match=r"the input `no.txt` is not there"):
        prepare(request(["no.txt"], "made"))
    with pytest.raises(CorpusError, match="the input `folder` is a folder"):
        prepare(request(["folder"], "made"))
    with pytest.raises(CorpusError, match=r"the tokenizer has no token `<s>`; its special tokens are `<\|end\|>`"):
        prepare(Request([Path("a.jsonl")], Path("made"), Path("tokenizer.json"), "<s>"))
    with pytest.raises(CorpusError, match=r"`a.jsonl` is not a tokenizer.json"):
        prepare(Request([Path("a.jsonl")], Path("made"), Path("a.jsonl"), END))
    with pytest.raises(CorpusError, match=r"there is no tokenizer `no.json`; .* headway downloads none"):
        prepare(Request([Path("a.jsonl")], Path("made"), Path("no.json"), END))


def test_folder_with_other_files_is_rejected(here: Path) -> None:
    prepare(request(["a.jsonl"], "made"))
    before = content(here / "made")
    with pytest.raises(CorpusError, match="has a corpus of other inputs"):
        prepare(request(["a.jsonl.gz"], "made"))
    (here / "other").mkdir()
    (here / "other" / "thesis.tex").touch()
    with pytest.raises(CorpusError, match=r"`other` has other files, `thesis.tex` for one"):
        prepare(request(["a.jsonl"], "other"))
    assert content(here / "made") == before
    Path("made", "00000.tokens").unlink()
    with pytest.raises(CorpusError, match="lacks a part of shard 00000"):
        prepare(request(["a.jsonl"], "made"))


def test_unfinished_corpus_with_a_changed_input_is_rejected(here: Path) -> None:
    (here / "b.jsonl").write_bytes(b'{"text": "fine"}\n{"text": 1}\n')
    with pytest.raises(CorpusError, match="has no text"):
        prepare(request(["b.jsonl"], "made"))
    os.utime("b.jsonl", (1, 1))
    with pytest.raises(CorpusError, match="an input has changed since"):
        prepare(request(["b.jsonl"], "made"))


def test_second_process_cannot_prepare_the_same_folder(here: Path) -> None:
    Path("made").mkdir()
    holder = "import fcntl, sys; f = open('made/.lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(CorpusError, match="another process prepares `made`"):
            prepare(request(["a.jsonl"], "made"))
        process.send_signal(signal.SIGKILL)


@given(st.lists(st.text("ab ", max_size=12), max_size=12), st.integers(1, 40))
def test_each_line_is_in_exactly_one_part(tmp_path_factory: pytest.TempPathFactory, lines: list[str], part_bytes: int) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_text("\n".join(lines))
    parts = divide([Input(str(path), path.stat().st_size, has_lines=True)], part_bytes)
    assert [text for part in parts for span in part for text in documents(span, "")] == [line for line in lines if line]


def test_small_files_share_a_part_and_only_large_files_of_lines_are_cut() -> None:
    small, large = Input("s.txt", 10, has_lines=False), Input("l.txt", 100, has_lines=False)
    lines, packed = Input("l.jsonl", 100, has_lines=True), Input("l.jsonl.gz", 100, has_lines=True)
    assert divide([small, small, small], 25) == [(Span(small, 0, 10), Span(small, 0, 10)), (Span(small, 0, 10),)]
    assert divide([large], 25) == [(Span(large, 0, 100),)]
    assert divide([packed], 60) == [(Span(packed, 0, 100),)]
    assert divide([lines], 60) == [(Span(lines, 0, 60),), (Span(lines, 60, 100),)]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (256_000, "uint32")])
def test_tokens_use_as_few_bytes_as_the_vocabulary_allows(vocab_size: int, dtype: str) -> None:
    assert dtype_of(vocab_size) == dtype
