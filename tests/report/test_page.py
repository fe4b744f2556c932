"""The page is complete, escaped and self-contained."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headway.report.markup import Markup, element, raw
from headway.report.page import render_page, write_page
from headway.report.summary import summarize
from headway.report.wording import bottom_line

from . import run_directory as build
from .run_directory import HASHES, RunDirectory

STORIES: dict[str, Callable[[Path], RunDirectory]] = {
    "clean": build.clean_run,
    "one failure": build.one_failure,
    "two failures": build.two_failures_and_a_refusal,
    "running": build.still_running,
    "never trained": build.never_trained,
    "not started": RunDirectory,
    "one step": lambda path: build.clean_run(path, steps=1, every=1),
}
HOSTILE = "</script><script>alert('1')</script><img src=x onerror=\"alert(2)\">&amp;"


class Elements(HTMLParser):
    """Collects every start tag with its attributes; fails if an end tag closes another element."""

    VOID = ("meta", "link", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(params=STORIES)
def page(request: pytest.FixtureRequest, runs: Path) -> str:
    STORIES[request.param](runs / "run")
    return render_page(summarize(runs / "run"))


def test_every_page_is_well_formed_with_language_and_title(page: str) -> None:
    tags = dict(Elements(page).found)
    assert page.startswith('<!doctype html>\n<html lang="en">')
    assert {"title", "style", "script", "h1", "main"} <= tags.keys()


def test_page_has_no_external_references(page: str) -> None:
    found = Elements(page).found
    policies = [attributes["content"] for _, attributes in found if attributes.get("http-equiv") == "Content-Security-Policy"]
    assert [str(policy).split(";")[0] for policy in policies] == ["default-src 'none'"]
    for tag, attributes in found:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            reference = attributes.get(name)
            assert reference is None or reference.startswith(("#", "data:")), (tag, reference)
    assert re.findall(r"https?:|//[a-z]|@import|url\(", page) == []


def test_every_picture_has_a_text_alternative(page: str) -> None:
    for tag, attributes in Elements(page).found:
        if tag == "svg" or attributes.get("role") == "img":
            assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"


def test_every_link_inside_the_page_has_its_target(page: str) -> None:
    found = Elements(page).found
    targets = {f"#{attributes['id']}" for _, attributes in found if attributes.get("id")}
    assert {attributes["href"] for tag, attributes in found if tag == "a"} <= targets


def test_text_from_the_records_never_becomes_an_element(runs: Path) -> None:
    run = RunDirectory(runs / "run", job=HOSTILE, trainer=HOSTILE)
    run.begin(hosts=[HOSTILE])
    run.train(15)
    run.spend(HOSTILE, 1.0)
    run.refuse(10, 1, reason=HOSTILE)
    run.fail(HOSTILE, host=HOSTILE, back_to=10)
    run.begin(base=(10, 1), hosts=[HOSTILE])
    run.train(20)
    run.finish({HOSTILE: HOSTILE})
    run.end(HOSTILE, 83, HOSTILE)
    elements = Elements(render_page(summarize(runs / "run")))
    assert [tag for tag, _ in elements.found].count("script") == 1
    assert "img" not in [tag for tag, _ in elements.found]
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    # job, verdict, causes, host, reason, bucket, trainer, hosts, and the hash with its name
    assert sum(HOSTILE in text for text in elements.text) >= 11


def test_page_has_the_figures_of_the_summary(runs: Path) -> None:
    build.two_failures_and_a_refusal(runs / "run")
    summary = summarize(runs / "run")
    text = "\n".join(Elements(render_page(summary)).text)
    assert bottom_line(summary) in text
    for expected in ("50.0 %", "5.77 \u2192 2.13", "40 of 40 steps", "rank 2 on n2", "1a2b3c4d5e6f7081", "4 ranks (1 slot x 4)"):
        assert expected in text
    for expected in (*HASHES, *HASHES.values(), summary.refused[0].path, summary.refused[0].reason):
        assert expected in text


def test_failures_table_has_a_row_with_its_cost_for_each_failure(runs: Path) -> None:
    build.two_failures_and_a_refusal(runs / "run")
    rows = re.findall(r'<tr id="failure-\d">(.*?)</tr>', render_page(summarize(runs / "run")))
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in rows]
    assert cells[0] == ["1", "+16.0 s", "1", "killed by SIGKILL", "rank 2 on n2", "27", "20", "7", "3.0 s"]
    assert cells[1] == ["2", "+26.8 s", "2", "no heartbeat for 30 s", "on n2", "35", "20", "15", "3.2 s"]


def test_long_list_of_checkpoints_shows_the_newest_and_a_note(runs: Path) -> None:
    build.clean_run(runs / "run", steps=150, every=1)
    page = render_page(summarize(runs / "run"))
    assert "50 earlier checkpoints not shown." in page
    table = page.split('aria-label="Committed checkpoints"')[1].split("</table>")[0]
    assert table.count("<tr>") == 1 + 100
    assert "<td>150</td>" in table


def test_segments_fill_the_goodput_bar(runs: Path) -> None:
    build.one_failure(runs / "run")
    page = render_page(summarize(runs / "run"))
    bar = page.split("<h2>Where the time went</h2>")[1].split("<ul")[0]
    assert sum(float(width) for width in re.findall(r"width:([\d.]+)%", bar)) == pytest.approx(100, abs=0.02)


def test_the_same_summary_gives_the_same_bytes(runs: Path) -> None:
    build.one_failure(runs / "run")
    assert render_page(summarize(runs / "run")) == render_page(summarize(runs / "run"))


def test_failed_write_keeps_the_old_page_and_leaves_no_other_file(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.clean_run(runs / "run")
    target = runs / "report.html"
    target.write_text("old", encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_page(summarize(runs / "run"), target)
    assert target.read_text(encoding="utf-8") == "old"
    assert sorted(path.name for path in runs.iterdir()) == ["report.html", "run"]


def test_a_plain_string_is_escaped_and_markup_is_not() -> None:
    assert element("p", "<b>", Markup("<i>"), title='"&') == '<p title="&quot;&amp;">&lt;b&gt;<i></p>'


def test_style_that_would_end_early_is_rejected() -> None:
    with pytest.raises(ValueError, match="must not hold"):
        raw("style", "a{}</style>")


def test_page_shows_costs_events_and_marks(runs: Path) -> None:
    build.hang_and_lost_node(runs / "run")
    page = render_page(summarize(runs / "run"))
    costs = page.split('aria-label="What failures cost, by cause"')[1].split("</table>")[0]
    assert re.findall(r"<td>([^<]*)</td>", costs)[:4] == ["hang", "1", "5.0 s", "20.7 %"]
    events = page.split("<h2>Events</h2>")[1].split("</section>")[0]
    assert "<code>attempts/0/evidence/stacks-1.txt</code>" in events
    marks = re.findall(r'class="mark" style="left:([\d.]+)%" title="([a-z ]+):', page)
    assert [kind for _, kind in marks] == ["hang", "straggler", "lost", "rebound"]
    assert [float(left) for left, _ in marks] == sorted(float(left) for left, _ in marks)


def test_timeline_has_times_at_its_start_middle_and_end(runs: Path) -> None:
    build.one_failure(runs / "run")
    found = re.search(r'<div class="clock"[^>]*>(.*?)</div>', render_page(summarize(runs / "run")))
    assert found is not None
    assert re.findall("<span>(.*?)</span>", found[1]) == ["+0 s", "+14.5 s", "+29.0 s"]
