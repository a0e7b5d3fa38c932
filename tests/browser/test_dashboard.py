"""The dashboard in a real browser: Chromium without a head, where there is one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit import factories as make
from tests.unit.test_dashboard import FACTS, TOKEN, dashboard, tell

from trainmover.bus.nats.bus import NatsBus
from trainmover.commands import RequestAccepted

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.timeout(120)


class Planner:
    """A bus with a job on it, and a planner that approves, in a thread of their own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()])

    async def _run(self) -> None:
        async with NatsBus(self.url) as bus:
            await bus.setup()
            await tell(bus, *FACTS, make.progress("node-0", 0, 41))

            async def answer(verb: str, body: bytes) -> bytes:
                if verb == "status":
                    return b"{}"
                self.asked.append((verb, json.loads(body)))
                await tell(bus, make.MOVE.preparing(), make.MOVE.committed())
                return RequestAccepted(migration="m-0001").model_dump_json().encode()

            await bus.serve("j", answer)
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Planner:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        self._loop.close()


@pytest.fixture
def planner(nats_url: str) -> Iterator[Planner]:
    with Planner(nats_url) as found:
        yield found


@pytest.fixture
def address(planner: Planner, tmp_path: Path) -> Iterator[str]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with dashboard(planner.url, tmp_path, "--token-file", str(token)) as (url, _):
        yield url


def opened(browser: Any, url: str, **options: Any) -> tuple[Any, list[str]]:
    """The page once it shows the job, and what went wrong in it."""
    page = browser.new_context(**options).new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(url)
    page.wait_for_selector(".slot")
    return page, wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_in_light_and_dark(browser: Any, address: str, scheme: str, width: int) -> None:
    view = {"width": width, "height": 800}
    page, wrong = opened(browser, address, color_scheme=scheme, viewport=view)
    too_wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(too_wide) == 0
    assert wrong == [], "its own policy lets everything of it pass"
    text = page.inner_text("body")
    assert "node-1 is twice as slow as its peers" in text
    assert "m-0001 waits for you" in text
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 22, 27)")
    page.context.close()


def test_what_nobody_knows_is_not_said(browser: Any, address: str) -> None:
    page, _ = opened(browser, address, viewport={"width": 800, "height": 800})
    assert "late" not in page.inner_text("#slots")
    assert "-" not in [pill.inner_text().strip() for pill in page.locator("#pills li").all()]
    page.context.close()


def test_an_operator_approves_with_the_token(browser: Any, address: str, planner: Planner) -> None:
    page, wrong = opened(browser, address, viewport={"width": 1000, "height": 800})
    assert "believed bad" in page.inner_text(".slot.accused")
    page.get_by_role("button", name="Approve").click()
    page.fill("#token", "not the token at all")
    page.fill("#by", "ada")
    page.fill("#reason", "fans are out")
    page.click("#ask-yes")
    playwright.expect(page.locator("#ask-error")).to_contain_text("token")
    assert planner.asked == []
    page.fill("#token", TOKEN)
    page.click("#ask-yes")
    page.wait_for_selector("#ask", state="hidden")
    playwright.expect(page.locator("#history")).to_contain_text("committed")
    ((verb, body),) = planner.asked
    assert (verb, body["requested_by"], body["reason"]) == ("approve", "ada", "fans are out")
    page.click("#history a")
    page.wait_for_selector("text=What it cost")
    assert "twice as slow" in page.inner_text("body")
    # A refused token is an answer of 401, which the browser notes; nothing else went wrong.
    assert [one for one in wrong if "401" not in one] == []
    page.context.close()
