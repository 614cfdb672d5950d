"""Opens pages in a headless browser for the tests of pages."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

Colour = tuple[int, int, int]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH = 1180  # pixels of the window
HOSTILE = (
    "</text></svg></style><script>document.title='taken'</script><img src=x onerror=document.title='taken'>\x1b\u202e"
)


def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found, "this test needs a browser: sudo apt-get install chromium"
    return found


def in_browser(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Opens a page; ``--dump-dom`` prints the DOM that the browser built."""
    arguments = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", *options]
    return subprocess.run([*arguments, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)


def visible_text(dom: str) -> str:
    """Returns the text of a page without its markup."""
    return html.unescape(re.sub(r"<style.*?</style>|<[^>]+>", " ", dom, flags=re.DOTALL))


def assert_hostile_names_are_text(path: Path) -> None:
    """Fails if a name has become markup, or if one of its control characters is left. The page contains ``HOSTILE``."""
    dom = in_browser(path, "--dump-dom").stdout
    assert "<title>taken</title>" not in dom
    assert not re.search(r"<(script|img)\b", dom)
    assert "&lt;script&gt;" in dom
    assert "\x1b" not in path.read_text()
    assert "\u202e" not in path.read_text()


def assert_scripts_are_refused(path: Path) -> None:
    """Fails if a script in the page would run. Changes the file."""
    path.write_text(path.read_text().replace("</main>", "<script>document.title = 'taken'</script></main>"))
    ended = in_browser(path, "--dump-dom")
    assert "<title>taken</title>" not in ended.stdout
    assert "Content Security Policy" in ended.stderr


def colour_shares(path: Path, height: int, width: int = WIDTH) -> dict[Colour, float]:
    """Returns the colours of a picture of the page, each with its share of the pixels."""
    import numpy as np
    from matplotlib.image import imread

    shot = path.with_suffix(".png")
    in_browser(path, f"--screenshot={shot}", f"--window-size={width},{height}", "--hide-scrollbars")
    picture = (imread(shot)[..., :3] * 255).round().astype(int)
    assert picture.shape[:2] == (height, width)
    colours, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(colour): count / counts.sum() for colour, count in zip(colours.tolist(), counts, strict=True)}


def assert_self_contained(page: str) -> None:
    """Fails for a page that names any other source, or that accepts an injected style or script."""
    assert not re.search(r"https?://|\bsrc=|\bhref=|url\((?!#)|@import|style=", page)
    assert "default-src 'none'" in page
