"""Headless Chromium, driven by its DevTools protocol: just enough to look at a page and to type.

Chromium speaks it over a pair of pipes, so no port is needed and no library but asyncio.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))), None)
SECONDS = 60.0


class Browser:
    """One page of a browser of its own; ``problems`` are errors and warnings that the page has logged."""

    def __init__(self, width: int = 1280, height: int = 1000) -> None:
        self.problems: list[str] = []
        self._size = f"--window-size={width},{height}"
        self._profile = tempfile.mkdtemp(prefix="np-browser-")
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self._number = 0

    async def __aenter__(self) -> Self:
        assert CHROMIUM, "no Chromium is installed: expected chromium-headless-shell, chromium or chromium-browser"
        read_by_chromium, self._write = os.pipe()
        read, written_by_chromium = os.pipe()
        # Chromium takes descriptors 3 and 4; the numbers of the pipes here may be any.
        moving = (
            "import fcntl, os, sys; high = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]; "
            "os.dup2(high[0], 3); os.dup2(high[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
        )
        start = (sys.executable, "-c", moving)
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
        flags += ["--remote-debugging-pipe", "--no-first-run"]
        pipes = (read_by_chromium, written_by_chromium)
        self._process = await asyncio.create_subprocess_exec(
            *(
                *start,
                *map(str, pipes),
                CHROMIUM,
                *flags,
                self._size,
                f"--user-data-dir={self._profile}",
                "about:blank",
            ),
            pass_fds=pipes,
            start_new_session=True,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for end in (read_by_chromium, written_by_chromium):
            os.close(end)
        self._reader = asyncio.StreamReader(limit=64 << 20)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read, "rb"))
        self._reading = asyncio.create_task(self._read(), name="browser")
        try:
            await self._attach()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _attach(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def __aexit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # its helpers, too: they write into the profile
        await self._process.wait()
        self._reading.cancel()
        self._transport.close()
        os.close(self._write)
        for _try in range(20):
            shutil.rmtree(self._profile, ignore_errors=True)
            if not Path(self._profile).exists():
                break
            await asyncio.sleep(0.1)  # a helper is just ending

    async def _read(self) -> None:
        while message := (await self._next()):
            if answer := self._answers.pop(message.get("id", -1), None):
                answer.set_result(message)
            match message.get("method"):
                case "Runtime.exceptionThrown":
                    self.problems.append(str(message["params"]["exceptionDetails"]))
                case "Log.entryAdded" if message["params"]["entry"]["level"] in {"error", "warning"}:
                    self.problems.append(str(message["params"]["entry"]))

    async def _next(self) -> dict[str, Any] | None:
        try:
            message: dict[str, Any] = json.loads((await self._reader.readuntil(b"\0"))[:-1])
        except asyncio.IncompleteReadError:  # the browser has ended
            for answer in self._answers.values():
                answer.cancel()
            return None
        return message

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(SECONDS):
            found = await answer
        assert "error" not in found, f"{method}: {found}"
        result: dict[str, Any] = found["result"]
        return result

    async def open(self, url: str) -> None:
        """Go to a page."""
        await self.call("Page.navigate", url=url)

    async def value(self, script: str) -> Any:
        """What an expression gives in the page; promises are waited for."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer}"
        return answer["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true in the page; what it gives."""
        try:
            async with asyncio.timeout(SECONDS):
                while not (found := await self._evaluated(script)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.value("document.body.innerText")
            raise AssertionError(f"never true: {script}; {self.problems}; the page reads:\n{text}") from None
        return found

    async def _evaluated(self, script: str) -> Any:
        """What an expression gives; None while the page is not that far."""
        try:
            return await self.value(script)
        except AssertionError:
            return None

    async def press(self, key: str) -> None:
        """Press and release one key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    async def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select, as a user would."""
        script = f"""(() => {{ const each = document.querySelector({json.dumps(selector)});
            each.value = {json.dumps(value)}; each.dispatchEvent(new Event("input", {{bubbles: true}}));
            each.dispatchEvent(new Event("change", {{bubbles: true}})); }})()"""
        await self.value(script)

    async def screenshot(self, path: Path, selector: str = "") -> None:
        """A picture of one element, or of the window."""
        if not selector:
            shot = await self.call("Page.captureScreenshot")
            path.write_bytes(base64.b64decode(shot["data"]))
            return
        script = f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
        box = await self.value(
            script + "return {x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height}; })()"
        )
        shot = await self.call("Page.captureScreenshot", clip=box | {"scale": 1}, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
