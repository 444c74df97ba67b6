"""What each job did, in a mapped file: it is shared by all processes and outlives a killed one."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

__all__ = ["Record"]

HEADER = 8
MOST = 255


class Record:
    """The starts and ends of `size` jobs, which are numbered from 0.

    After the CPU seconds that the worker had used when its first job started come a byte with
    the count of starts for each job, one with the count of ends, then the first start and the
    last end as doubles: seconds of the monotonic clock, which all processes share.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        with path.open("a+b") as file:
            file.truncate(HEADER + size * 18)
            self._map = mmap.mmap(file.fileno(), 0)
        self._ends = HEADER + size
        self._start_times = HEADER + 2 * size
        self._end_times = HEADER + 10 * size

    def begin(self, number: int) -> None:
        """Note that the job starts, now."""
        count = self._map[HEADER + number]
        if not count:
            struct.pack_into("d", self._map, self._start_times + 8 * number, time.monotonic())
        self._map[HEADER + number] = min(MOST, count + 1)

    def end(self, number: int) -> None:
        """Note that the job has ended, now."""
        place = self._ends + number
        struct.pack_into("d", self._map, self._end_times + 8 * number, time.monotonic())
        self._map[place] = min(MOST, self._map[place] + 1)

    @property
    def cpu_before(self) -> float:
        """The CPU seconds that the worker had used before its first job."""
        return float(struct.unpack_from("d", self._map)[0])

    @cpu_before.setter
    def cpu_before(self, seconds: float) -> None:
        struct.pack_into("d", self._map, 0, seconds)

    def started(self) -> int:
        """Return how many jobs have started."""
        return self.size - self._map[HEADER : self._ends].count(0)

    def done(self) -> int:
        """Return how many jobs have ended."""
        return self.size - self._map[self._ends : self._start_times].count(0)

    def repeated(self) -> int:
        """Return how many jobs were started more than once."""
        once = self._map[HEADER : self._ends].count(1)
        return self.started() - once

    def start_times(self) -> list[float]:
        """Return the first start of each job; 0 for one that has not started."""
        return list(struct.unpack_from(f"{self.size}d", self._map, self._start_times))

    def end_times(self) -> list[float]:
        """Return the last end of each job; 0 for one that has not ended."""
        return list(struct.unpack_from(f"{self.size}d", self._map, self._end_times))

    def span(self) -> float:
        """Return the seconds from the first start to the last end."""
        return max(self.end_times()) - min(filter(None, self.start_times()))
