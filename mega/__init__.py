"""mega: scheduled jobs, queued jobs and CPU tasks, declared with decorators in one file."""

from mega import cpu
from mega.app import App
from mega.context import JobContext, ScheduleContext, current_job
from mega.control import Reject, Retry, Snooze
from mega.cpu_handle import CpuHandle
from mega.errors import (
    BrokerError,
    BrokerUnavailable,
    CpuError,
    CpuTimeout,
    DeclarationError,
    JobFailedError,
    MegaError,
    NotConnected,
    PayloadError,
    ResultExpired,
)
from mega.events import Event
from mega.group import Group
from mega.handles import Job, JobHandle, ScheduleHandle
from mega.options import Backoff, DeadLetter, Lock
from mega.version import __version__
from mega.wire.record import JobRecord
from mega.wire.schedule_record import ScheduleRecord

__all__ = [
    "App",
    "Backoff",
    "BrokerError",
    "BrokerUnavailable",
    "CpuError",
    "CpuHandle",
    "CpuTimeout",
    "DeadLetter",
    "DeclarationError",
    "Event",
    "Group",
    "Job",
    "JobContext",
    "JobFailedError",
    "JobHandle",
    "JobRecord",
    "Lock",
    "MegaError",
    "NotConnected",
    "PayloadError",
    "Reject",
    "ResultExpired",
    "Retry",
    "ScheduleContext",
    "ScheduleHandle",
    "ScheduleRecord",
    "Snooze",
    "__version__",
    "cpu",
    "current_job",
]
