"""The page of a sweep: what it holds, that it needs no network, and that a browser sorts its table."""

import re
import shutil
import subprocess

import pytest
from support.pages import Page
from support.stored_runs import STAGES, write_run

from pipetrain.reporting.sweep import sweep_tables
from pipetrain.reporting.sweep.comparison import collect, ranked
from pipetrain.reporting.sweep.sweep_page import columns_of, page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def compared(tmp_path):
    for name, method, top1, wall in (("a", "gpipe", 80.0, 9.0), ("b", "lwp", 90.0, 5.0), ("c", "pipemare", 70.0, 7.0)):
        for seed in (0, 1):
            write_run(tmp_path / f"{name}{seed}", f"method={method}", f"seed={seed}", top1=top1 + seed, wall_s=wall)
    write_run(tmp_path / "d", "method=<i>asp</i>", status="diverged", per_stage=[], final={}, best={})
    return ranked(collect([tmp_path], {}), "top1")


def test_page_has_table_curves_and_stages_without_network(compared):
    text = page("A <title> & $TABLE", compared)
    read = Page(text)
    assert "<title>A &lt;title&gt; &amp; $TABLE</title>" in text
    assert "http" not in re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
    assert not [name for name, _ in read.attributes if name in ("src", "href")]
    assert "<i>asp</i>" not in text
    order = re.findall(r'<th scope="row"><i [^>]*></i>([^<]*)</th>', text)
    assert order == ["lwp", "gpipe", "pipemare", "&lt;i&gt;asp&lt;/i&gt;"] * 2
    assert '<th scope="col" data-higher="1" aria-sort="descending">final top1</th>' in text
    assert re.findall(r'data-metric="([^"]*)" data-axis="([^"]*)"', text) == [
        ("top1", "epoch"), ("top1", "wall_s"), ("loss", "epoch"), ("samples_per_second", "epoch"),
    ]  # fmt: skip
    courses = text.partition('id="courses"')[2].partition("<h2>")[0]
    drawn = re.findall(r'<g data-group="(\d)"><title>(.*?)</title>', courses)
    diverged = 4 * 4  # a line as far as it got, a cross, its name and the line to it
    assert drawn.count(("3", "&lt;i&gt;asp&lt;/i&gt;")) == diverged
    bands = 2  # all seeds differ in top1
    assert drawn.count(("0", "lwp")) == 4 * 3 + bands
    assert '<td data-value="90.5">90.50 ± 0.71</td>' in text


def test_page_shows_memory_and_staleness_of_every_stage(compared):
    bars = re.findall(r"<g><title>(stage [^<]*)</title>", page("sweep", compared))
    assert len(bars) == 3 * 2 * len(STAGES)
    assert bars[:4] == [
        "stage 0: 800 B of weights, 30 B of activations",
        "stage 1: 400 B of weights, 10 B of activations",
        "stage 0: 2 updates late",
        "stage 1: 0 updates late",
    ]


@pytest.mark.parametrize(("letters", "label"), [(1, None), (90, "1 pipemare")])
def test_long_names_at_lines_are_numbers(tmp_path, letters, label):
    for number in (1, 2):
        write_run(tmp_path / str(number), "method=pipemare", f"optimizer.name={letters * 'm'}{number}")
    text = page("sweep", ranked(collect([tmp_path], {}), "top1"))
    assert f">{label or 'name=m1'}</text>" in text
    if label:
        assert f"{label}</th><td>{letters * 'm'}1</td>" in text


def test_throughput_starts_at_zero(compared):
    text = page("sweep", compared)
    throughput = text.partition('data-metric="samples_per_second"')[2].partition("</svg>")[0]
    ends = "|".join(re.findall(r"\.(\w+)\{[^}]*text-anchor:end[^}]*\}", throughput))
    assert re.search(rf'class="({ends})"[^>]*>0</text>', throughput)


def test_columns_are_those_that_any_run_has(compared):
    assert columns_of("top1", compared.groups) == [
        "top1", "best_top1", "samples_per_second", "wall_s", "idle_share", "weight_bytes", "activation_bytes",
        "memory_bytes", "copies",
    ]  # fmt: skip
    assert columns_of("memory_bytes", compared.groups)[0] == "memory_bytes"


def test_page_and_tables_have_what_formats_of_messages_send(tmp_path):
    sent = {"activations_bytes": 25.0, "activations_plain_bytes": 100.0}
    write_run(tmp_path / "a", "messages.activations.name=int8", per_stage=[{**STAGES[0], **sent}, STAGES[1]])
    write_run(tmp_path / "b", "messages.activations.name=plain")
    compared = ranked(collect([tmp_path], {}), "top1")
    assert columns_of("top1", compared.groups)[-2:] == ["message_bytes", "message_share"]
    assert '<td data-value="0.25">25.0%</td>' in page("sweep", compared)
    assert "25 B     25.0%" in sweep_tables.text(compared)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_browser_sorts_the_table_by_the_column_that_is_clicked(compared, tmp_path):
    clicks = "<script>for (const n of [5, 5]) table.tHead.rows[0].cells[n].click(); follow('1')</script>"
    path = tmp_path / "page.html"
    path.write_text(page("sweep", compared) + clicks, encoding="utf-8")
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [*words, "--dump-dom", path.as_uri()], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    body = shown.partition('<table id="runs">')[2].partition("</table>")[0]
    assert re.findall(r"</i>([^<]*)</th>", body) == ["&lt;i&gt;asp&lt;/i&gt;", "gpipe", "pipemare", "lwp"]
    assert 'aria-sort="descending">wall time, s</th>' in body
    assert shown.count('class="same"') == 2 + 4 * 3 + 2
