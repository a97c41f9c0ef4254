"""The page of a recording in Debian's Chromium, driven by Playwright. Run it with scripts/page_test.sh.

What the page shows is held against the other commands on the same file: `explain --json` for the peak, and the table of
blocks that `export --to jsonl` writes for any other moment. Recordings are synthesized.
"""

import collections
import json
import os
import pathlib
import pickle
import subprocess

import pytest
from playwright.sync_api import sync_playwright

PLIMSOLL = os.environ["PLIMSOLL"]
XTASK = os.environ["PLIMSOLL_XTASK"]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
# Machines that build several things at once are slow.
PATIENCE = 60_000


def run(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


class Recording:
    def __init__(self, path):
        self.path = path
        self.html = path.with_suffix(".html")
        run(PLIMSOLL, "export", path, "--to", "html", "--output", self.html)

    def explain(self):
        devices = json.loads(run(PLIMSOLL, "explain", self.path, "--json"))["snapshot"]["devices"]
        assert len(devices) == 1
        return devices[0]["explanation"]

    def blocks(self):
        table = self.path.with_suffix(".jsonl")
        run(PLIMSOLL, "export", self.path, "--to", "jsonl", "--table", "blocks", "--output", table)
        return [json.loads(line) for line in table.read_text().splitlines()]

    def live_after(self, event):
        """Bytes by category after an event."""
        sums = collections.Counter()
        for block in self.blocks():
            born, died = block["birth_event"], block["death_event"]
            if (born is None or born <= event) and (died is None or died > event):
                sums[words(block["category"])] += block["bytes"]
        return dict(sums)


def words(category):
    """The page's words for a category, from its name in JSON."""
    return {"kv_cache": "KV cache"}.get(category, category.replace("_", " "))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="session")
def recording(folder):
    path = folder / "run.pickle"
    run(XTASK, "synthesize-snapshot", "--events", 200_000, "--depth", 12, path)
    return Recording(path)


@pytest.fixture(scope="session")
def ran_out(folder):
    path = folder / "oom.pickle"
    run(XTASK, "synthesize-snapshot", "--events", 200_000, "--depth", 12, "--capacity-gib", 12, path)
    return Recording(path)


def changed(recording, name, change):
    """A recording whose parts were changed as plain data."""
    with recording.path.open("rb") as file:
        snapshot = pickle.load(file)  # written by this test
    change(snapshot)
    path = recording.path.with_name(name)
    with path.open("wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    return Recording(path)


@pytest.fixture(scope="session")
def chromium():
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens pages from disk; complaints and requests for anything but the file fail the test."""
    contexts, complaints, asked = [], [], []

    def opened(recording, width=1400, height=950, scheme="light"):
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(recording.html.as_uri())
        settled(page)
        return page

    yield opened
    shots = os.environ.get("PLIMSOLL_PAGE_SHOTS")
    if shots:
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0]
        for number, context in enumerate(contexts):
            context.pages[0].screenshot(path=pathlib.Path(shots) / f"{name}-{number}.png", full_page=True)
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith("file:")] == []
    assert len(asked) == len(contexts)


def settled(page):
    page.wait_for_function("document.documentElement.dataset.ready === 'all'")


def frames(page, number=3):
    page.evaluate("async n => { while (n--) await new Promise(requestAnimationFrame); }", number)


def ink(page, canvas):
    """How many different colours a canvas shows, and a sum that changes with the picture."""
    return page.evaluate(
        """selector => {
          const { width, height } = document.querySelector(selector);
          // A copy is read: reading the canvas itself would change how the browser keeps it.
          const copy = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true });
          copy.drawImage(document.querySelector(selector), 0, 0);
          const { data } = copy.getImageData(0, 0, width, height);
          const pixels = new Uint32Array(data.buffer), colours = new Set(pixels);
          let sum = 0;
          for (const pixel of pixels) sum = (Math.imul(sum, 31) + pixel) | 0;
          return [colours.size, sum];
        }""",
        canvas,
    )


def sums_of_page(page):
    return page.evaluate(
        """() => {
          const sums = {};
          for (const [group, { bytes }] of plimsoll.live().groups) {
            const name = plimsoll.head.groups[group].category;
            sums[name] = (sums[name] || 0) + bytes;
          }
          return sums;
        }"""
    )


def rows(page):
    return [row.split("\t") for row in page.locator("#table tbody tr").all_inner_texts()]


def test_first_picture_and_words(open_page, recording):
    page = open_page(recording)
    assert page.evaluate("performance.getEntriesByName('plimsoll-first-picture').length") == 1
    assert page.title() == "run.pickle - Plimsoll"
    assert page.inner_text("#title") == "run.pickle"
    assert "torch 2.10" in page.inner_text("#subtitle")
    legend = page.inner_text("#legend")
    for name in ["activations", "optimizer states", "reserved", "requested"]:
        assert name in legend
    explained = recording.explain()
    facts = page.inner_text("#facts")
    assert f"{explained['exact']['peaks']['allocated'] / 2**30:.2f} GiB" in facts
    assert f"{explained['events']:,}" in facts
    assert page.locator("#findings li").count() == page.evaluate("plimsoll.head.findings.length") > 0
    for canvas in ["#memory", "#addresses", "#overview"]:
        assert ink(page, canvas)[0] > 3, canvas


def test_live_set_at_the_peak_is_that_of_explain(open_page, recording):
    page = open_page(recording)
    peak = recording.explain()["peak"]
    assert page.evaluate("plimsoll.head.peak") == peak["moment"]["event"]
    assert "(the peak)" in page.inner_text("#moment")
    expected = {words(part["category"]): part["bytes"] for part in peak["live"]["by_category"]}
    assert sums_of_page(page) == expected
    assert page.evaluate("plimsoll.live().total") == peak["live"]["bytes"]
    assert page.evaluate("plimsoll.live().blocks") == peak["live"]["tensors"]
    assert {row[0].strip() for row in rows(page)} == set(expected)


def test_another_moment_is_that_of_the_replay(open_page, recording):
    page = open_page(recording)
    before = rows(page)
    events = recording.explain()["events"]
    for event in [0, 700, events // 3, events - 1]:
        page.evaluate("event => plimsoll.pick(event)", event)
        page.wait_for_function("event => document.querySelector('#moment').textContent.startsWith(event)",
                               arg=f"event {event:,}")
        assert sums_of_page(page) == recording.live_after(event), event
    assert rows(page) != before
    # By hand: a click picks the event under the pointer.
    box = page.locator("#memory").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 4, box["y"] + 100)
    page.wait_for_function("n => Math.abs(plimsoll.live().total - n) > 0", arg=0)
    frames(page)
    shown = int(page.inner_text("#moment").split(" ")[1].rstrip(",").replace(",", ""))
    assert abs(shown - events / 4) < events / 200
    page.evaluate("event => plimsoll.pick(event)", shown)
    assert sums_of_page(page) == recording.live_after(shown)


def test_close_up_draws_the_blocks_themselves(open_page, recording):
    page = open_page(recording)
    events = recording.explain()["events"]
    middle = events // 2
    page.evaluate("middle => plimsoll.show(middle - 100, middle + 100)", middle)
    page.wait_for_function("plimsoll.exact() && plimsoll.exact().to >= plimsoll.view.to")
    frames(page)
    window = page.evaluate("(({from, to, rows}) => ({from, to, rows: rows.map(row => [row[0], row[1], row[3]])}))(plimsoll.exact())")
    expected = collections.Counter()
    for block in recording.blocks():
        born = 0 if block["birth_event"] is None else block["birth_event"]
        died = events if block["death_event"] is None else block["death_event"]
        if born < window["to"] and died >= window["from"]:
            # What dies behind the window is not known to it.
            expected[(born, died if died < window["to"] else events, block["bytes"] // 512)] += 1
    assert collections.Counter(map(tuple, window["rows"])) == expected
    assert ink(page, "#addresses")[0] > 3
    # To the closest level and beyond: it stays within bounds.
    for _ in range(12):
        page.evaluate("middle => plimsoll.zoom(.3, middle)", middle)
    frames(page)
    view = page.evaluate("[plimsoll.view.from, plimsoll.view.to]")
    assert view[0] <= middle <= view[1] and round(view[1] - view[0]) == 12
    assert ink(page, "#memory")[0] > 2


def test_moving_about(open_page, recording):
    page = open_page(recording)
    view = lambda: page.evaluate("[plimsoll.view.from, plimsoll.view.to]")
    events = page.evaluate("plimsoll.head.events")
    box = page.locator("#memory").bounding_box()
    at = (box["x"] + box["width"] / 2, box["y"] + 120)
    page.mouse.move(*at)
    page.mouse.wheel(0, -400)
    page.wait_for_function("n => plimsoll.view.to - plimsoll.view.from < n", arg=events * .9)
    before, picture = view(), ink(page, "#memory")
    page.mouse.down()
    page.mouse.move(at[0] - 150, at[1], steps=5)
    page.mouse.up()
    frames(page)
    after = view()
    assert after[0] > before[0] and after[1] - after[0] == pytest.approx(before[1] - before[0])
    assert ink(page, "#memory") != picture
    assert "(the peak)" in page.inner_text("#moment"), "a drag picks nothing"
    overview = page.locator("#overview").bounding_box()
    page.mouse.click(overview["x"] + 5, overview["y"] + 10)
    assert view()[0] == 0
    page.click("#all")
    assert view() == [0, events]


def test_keyboard(open_page, recording):
    page = open_page(recording)
    view = lambda: page.evaluate("[plimsoll.view.from, plimsoll.view.to]")
    events = page.evaluate("plimsoll.head.events")
    page.focus("#memory")
    page.keyboard.press("+")
    page.keyboard.press("+")
    closer = view()
    assert closer[1] - closer[0] == pytest.approx(events / 4)
    page.keyboard.press("ArrowRight")
    assert view()[0] > closer[0]
    page.keyboard.press("ArrowLeft")
    assert view() == pytest.approx(closer)
    page.keyboard.press("-")
    assert view()[1] - view()[0] == pytest.approx(events / 2)
    page.keyboard.press(".")
    page.wait_for_function("!document.querySelector('#moment').textContent.includes('peak')")
    page.keyboard.press("p")
    page.wait_for_function("document.querySelector('#moment').textContent.includes('peak')")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_function("!document.querySelector('#moment').textContent.includes('peak')")
    page.keyboard.press("Home")
    assert view() == [0, events]
    # Letters typed into the search are letters.
    page.focus("#search")
    page.keyboard.type("p+")
    assert view() == [0, events] and page.input_value("#search") == "p+"


def test_search_highlights(open_page, recording):
    page = open_page(recording)
    frames(page)
    plain = ink(page, "#addresses")
    page.click("[data-tab=what]")
    name = rows(page)[0][0].strip()
    page.fill("#search", name)
    frames(page)
    assert page.locator("#table tr.found").count() >= 1
    assert name in page.locator("#table tr.found").first.inner_text()
    assert ink(page, "#addresses") != plain
    page.fill("#search", "nothing is called so")
    assert page.locator("#table tr.found").count() == 0
    page.fill("#search", "")
    frames(page)
    assert ink(page, "#addresses") == plain


def test_tabs_and_flame_graph(open_page, recording):
    page = open_page(recording)
    total = page.evaluate("plimsoll.live().total")
    for tab, title in [("what", "Line or operator"), ("module", "Module"), ("category", "Category")]:
        page.click(f"[data-tab={tab}]")
        assert title in page.inner_text("#table th >> nth=0")
        assert page.get_attribute(f"[data-tab={tab}]", "aria-selected") == "true"
        assert len(rows(page)) > 0
    page.click("[data-tab=flame]")
    assert ink(page, "#flame canvas")[0] > 4
    assert f"{total / 2**30:.2f} GiB, 100.0 %: everything" == page.inner_text("#flame-path")
    picture = ink(page, "#flame canvas")
    box = page.locator("#flame canvas").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 60, box["y"] + 18 * 6 + 9)
    assert "everything" not in page.inner_text("#flame-path")
    assert ink(page, "#flame canvas") != picture
    assert page.locator("#table").is_hidden()


def test_layers_can_be_hidden(open_page, recording):
    page = open_page(recording)
    frames(page)
    picture = ink(page, "#memory")
    page.click("#legend button >> nth=-1")
    frames(page)
    assert page.get_attribute("#legend button >> nth=-1", "aria-pressed") == "false"
    assert ink(page, "#memory") != picture


def test_dark(open_page, recording):
    light, dark = open_page(recording), open_page(recording, scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(ground) != dark.evaluate(ground)
    for canvas in ["#memory", "#addresses", "#overview"]:
        assert ink(dark, canvas)[0] > 3
        assert ink(light, canvas) != ink(dark, canvas), canvas
    # A theme that changes while the page is open is followed.
    light.emulate_media(color_scheme="dark")
    frames(light)
    assert ink(light, "#overview") == ink(dark, "#overview")


@pytest.mark.parametrize("width", [360, 800])
def test_narrow_window(open_page, recording, width):
    page = open_page(recording, width=width, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for canvas in ["#memory", "#addresses"]:
        assert ink(page, canvas)[0] > 3
    before = page.evaluate("document.querySelector('#memory').width")
    page.set_viewport_size({"width": width + 80, "height": 740})
    frames(page)
    assert page.evaluate("document.querySelector('#memory').width") > before
    assert ink(page, "#memory")[0] > 3


def test_out_of_memory_has_a_load_line(open_page, ran_out):
    page = open_page(ran_out)
    failed = ran_out.explain()["failed"]
    assert page.evaluate("plimsoll.head.capacity") == failed["capacity"]
    assert page.evaluate("plimsoll.head.ooms.length") == 1
    assert "failed request" in page.inner_text("#facts")
    assert "% of the load line" in page.inner_text("#sums")


def test_empty_recording(open_page, recording):
    def empty(snapshot):
        first = next(segment for segment in snapshot["segments"] if len(segment["blocks"]) == 1)
        first["allocated_size"] = first["active_size"] = first["requested_size"] = 0
        first["blocks"][0].update(state="inactive", requested_size=0)
        snapshot["segments"], snapshot["device_traces"] = [first], [[]]

    page = open_page(changed(recording, "empty.pickle", empty))
    assert page.evaluate("plimsoll.head.events") == 0
    assert page.evaluate("plimsoll.live().total") == 0
    assert page.inner_text("#title") == "empty.pickle"
    for tab in ["what", "module", "flame", "category"]:
        page.click(f"[data-tab={tab}]")
    page.keyboard.press("+")
    frames(page)


def test_nothing_recorded_makes_no_page(recording):
    def nothing(snapshot):
        snapshot["segments"], snapshot["device_traces"] = [], [[]]

    with pytest.raises(subprocess.CalledProcessError) as failed:
        changed(recording, "nothing.pickle", nothing)
    assert "recording was off, or nothing was allocated" in failed.value.stderr


def test_state_without_a_trace(open_page, recording):
    def state_only(snapshot):
        snapshot["device_traces"] = [[]]

    dump = changed(recording, "state.pickle", state_only)
    page = open_page(dump)
    with dump.path.open("rb") as file:
        segments = pickle.load(file)["segments"]
    total = sum(block["size"] for segment in segments for block in segment["blocks"] if block["state"] != "inactive")
    assert page.evaluate("plimsoll.live().total") == total > 0
    assert sum(sums_of_page(page).values()) == total
    for canvas in ["#memory", "#addresses"]:
        assert ink(page, canvas)[0] > 6, canvas
    page.click("[data-tab=flame]")
    assert ink(page, "#flame canvas")[0] > 3
