"""What the server holds: jobs that wait, dead letters, records. Read past the proxies and mega."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import nats
from nats.aio.client import Client

from tests.chaos.history import Letter

__all__ = ["Audit", "audit"]

JOBS = "MEGA_JOBS_"
LETTERS = "_DLQ"


class Audit:
    """Questions to the server, over a connection of its own."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def left(self) -> list[str]:
        """Return what the job streams still hold, one line for each stream that holds any."""
        lines = []
        for name in await self._streams():
            state = (await self._ask(f"STREAM.INFO.{name}"))["state"]
            if state["messages"] and not name.endswith(LETTERS):
                lines.append(f"{name}: {state['messages']} left; {await self._consumer(name)}")
        return lines

    async def letters(self) -> list[Letter]:
        """Return all dead letters."""
        found = []
        for name in await self._streams():
            if name.endswith(LETTERS):
                found += [letter async for letter in self._letters(name)]
        return found

    async def state(self, job_id: str) -> str:
        """Return the state in the job's record, or an empty text."""
        subject = f"$KV.MEGA_STATE.{job_id.replace('.', '%2E')}"
        answer = await self._ask("STREAM.MSG.GET.KV_MEGA_STATE", last_by_subj=subject)
        return str(record_of(answer)["state"]) if "message" in answer else ""

    async def _letters(self, stream: str) -> AsyncIterator[Letter]:
        sequence = 1
        while True:
            answer = await self._ask(f"STREAM.MSG.GET.{stream}", seq=sequence, next_by_subj=">")
            if "message" not in answer:
                return
            place = f"{stream} {answer['message']['seq']}"
            sequence = answer["message"]["seq"] + 1
            yield letter_of(place, record_of(answer))

    async def _streams(self) -> list[str]:
        answer = await self._ask("STREAM.NAMES")
        return [name for name in answer.get("streams") or () if name.startswith(JOBS)]

    async def _consumer(self, stream: str) -> str:
        info = await self._ask(f"CONSUMER.INFO.{stream}.workers")
        names = ("num_pending", "num_ack_pending", "num_waiting", "num_redelivered")
        return ", ".join(f"{name} {info.get(name)}" for name in names)

    async def _ask(self, what: str, **body: Any) -> dict[str, Any]:
        reply = await self._client.request(f"$JS.API.{what}", json.dumps(body).encode(), timeout=5)
        answer: dict[str, Any] = json.loads(reply.data)
        return answer


@asynccontextmanager
async def audit(port: int) -> AsyncIterator[Audit]:
    """Connect to the server itself."""
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    try:
        yield Audit(client)
    finally:
        await client.close()


def record_of(answer: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(b64decode(answer["message"]["data"]))
    return record


def letter_of(place: str, record: dict[str, Any]) -> Letter:
    ago = (datetime.now(UTC) - datetime.fromisoformat(record["failed_at"])).total_seconds()
    return Letter(
        place=place,
        job_id=record["id"],
        subject=record["subject"],
        reason=record["reason"],
        error_type=record["error_type"],
        error=record["error"],
        attempts=record["attempts"],
        at=time.monotonic() - ago,
    )
