"""The types that the cases send: one of each kind that a payload may be made of."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import pydantic

__all__ = [
    "Admin",
    "Color",
    "Email",
    "Level",
    "Member",
    "Meta",
    "Pair",
    "Point",
    "Reply",
    "Shade",
    "Team",
]


class Color(enum.Enum):
    RED = "red"


class Pair(enum.Enum):
    BOTH = (1, 2)


class Shade(enum.StrEnum):
    DARK = "dark"


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: int = 0


class Meta(TypedDict):
    trace: uuid.UUID


@dataclass
class Email:
    to: str
    sent_at: dt.datetime | None = None


@dataclass
class Reply(Email):
    thread: str = ""


class Member(pydantic.BaseModel):
    id: uuid.UUID
    name: str


class Admin(Member):
    rights: list[str] = []


class Team(pydantic.BaseModel):
    members: list[Member]
