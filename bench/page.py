"""Measures a page in Chromium: time to its first picture, frames while it is panned and zoomed, memory.

Frames are told twice: the time between them, as somebody at this machine sees it, and the processor time that the page's
thread took for each, which other work on the machine does not change. "at rest" is the time between frames while nothing
is drawn: what is above it is the page's.
"""

import os
import pathlib
import statistics
import sys

from playwright.sync_api import sync_playwright

FIRST_PICTURE = 2000
FRAMES = 120
# (what, step of it, whether the blocks of its window are unpacked first): i of n frames, p the page, N events.
MOVES = [
    ("at rest", "", False),
    ("zooming from the whole", "p.zoom(i < n / 2 ? .93 : 1 / .93, p.head.peak)", False),
    ("panning a tenth", "p.show(N * .8 * i / n, N * (.8 * i / n + .1))", False),
    ("panning 200,000 events", "p.show(N / 2 + i * 3000, N / 2 + i * 3000 + 200000)", False),
    ("panning 50,000 events, exact", "p.show(N / 2 + i * 700, N / 2 + i * 700 + 50000)", True),
    ("panning 5,000 events, exact", "p.show(N / 3 + i * 75, N / 3 + i * 75 + 5000)", True),
]
PLAY = """async ([step, n]) => {
  const move = new Function('i', 'n', 'p', 'N', step), N = plimsoll.head.events, gaps = [];
  let last = await new Promise(requestAnimationFrame);
  for (let i = 0; i < n; i++) {
    move(i, n, plimsoll, N);
    const now = await new Promise(requestAnimationFrame);
    gaps.push(now - last);
    last = now;
  }
  return gaps;
}"""


def main():
    html = pathlib.Path(sys.argv[1]).resolve()
    arguments = ["--enable-precise-memory-info"] + (["--no-sandbox"] if os.geteuid() == 0 else [])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=arguments)
        pictures = []
        for _ in range(5):
            page = browser.new_page(viewport={"width": 1400, "height": 950})
            page.set_default_timeout(120_000)
            page.goto(html.as_uri())
            page.wait_for_function("document.documentElement.dataset.ready === 'all'")
            pictures.append(page.evaluate("performance.getEntriesByName('plimsoll-first-picture')[0].startTime"))
            whole = page.evaluate("performance.now()")
            if len(pictures) < 5:
                page.close()
        events = page.evaluate("plimsoll.head.events")
        print(f"page of {events:,} allocations and frees, {html.stat().st_size / 1e6:.1f} MB")
        print(f"first picture {min(pictures):.0f} ms least, {statistics.median(pictures):.0f} ms median "
              f"(bar {FIRST_PICTURE} ms); everything ready after {whole:.0f} ms")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def spent():
            metrics = session.send("Performance.getMetrics")["metrics"]
            return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

        print(f"{'':30} {'between frames, ms':>28}   {'processor':>9}")
        print(f"{'':30} {'median':>8} {'95th':>9} {'most':>9}   {'ms a frame':>9}")
        for name, step, unpacked in MOVES:
            if unpacked:
                page.evaluate(PLAY, [step, 1])
                page.wait_for_function("plimsoll.exact() !== null")
            page.wait_for_timeout(500)
            before = spent()
            gaps = sorted(page.evaluate(PLAY, [step, FRAMES]))
            each = (spent() - before) / FRAMES * 1000
            print(f"{name:30} {statistics.median(gaps):8.1f} {gaps[int(FRAMES * .95)]:9.1f} {gaps[-1]:9.1f}   {each:9.1f}")
        print(f"memory of the page's script {page.evaluate('performance.memory.usedJSHeapSize') / 1e6:.0f} MB")
        browser.close()
    return min(pictures) > FIRST_PICTURE


if __name__ == "__main__":
    sys.exit(main())
