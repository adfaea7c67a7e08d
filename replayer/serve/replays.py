"""Replay jobs of the page: planned, begun, steered and watched as processes of their own, by the folders of the jobs.

A job is the command `replayer replay`, detached from the page. It is known by the lock and the objects of its folder,
so a page that was restarted finds it again.
"""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from blockgz import errors
from blockgz.archive.archive import parse_topic
from blockgz.atomic_file import make_private_folder
from blockgz.elastic_pool import ElasticPool
from blockgz.kafka.secrets import LOADS_CODE
from blockgz.store.opening import open_store
from blockgz.store.writer import ToolStore
from blockgz.units import wall_clock
from index_format.keys import check_topic, parse_topic_folder
from index_format.objects import Sealed, Timestamp, decode, encode, stored
from replayer.errors import ReplayRefused, TargetInUse
from replayer.replay.job import Job, is_job_name
from replayer.replay.jobs.control import (
    JobProgress,
    JobState,
    change_control,
    is_running,
    job_signs,
    job_state,
    lock_folder,
    read_control,
    read_progress,
    summary_of,
)
from replayer.replay.jobs.folder import JobFolder, JobRequest, job_names, jobs_place, this_process
from replayer.serve.errors import CutsInDoubt, failure_of
from replayer.serve.settings import ServeSettings

Text = Annotated[str, StringConstraints(max_length=2000, pattern=r"^[^\x00]*$")]
Texts = Annotated[list[Text], Field(max_length=100)]


class ReplayForm(BaseModel):
    """A replay as a form requests it; empty texts count as not given. See `replayer replay --help` for each field."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    topic: Text = Field(description="TOPIC or TOPIC:P,P-P", min_length=1)
    to_topic: Text = Field(description="The target; {topic} stands for the archived topic's name.", min_length=1)
    start: Text | None = Field(None, alias="from")
    to: Text | None = None
    at: Text | None = None
    at_rule: Literal["majority", "first"] | None = Field(
        None, description="Where `at` ends a partition whose clocks disagree; without it, a doubt is answered with 409"
    )
    since: Text | None = None
    until: Text | None = None
    key: Texts = []
    null_key: bool = False
    header: Texts = []
    grep: Text | None = None
    partitions: Text | None = Field(None, description="keep, by-key, by-key:N, N, or a map")
    timestamps: Text | None = None
    strip_header: Texts = []
    add_header: Texts = []
    provenance: bool = False
    tombstones: Literal["keep", "drop"] | None = None
    allow_unchanged: bool = False
    create_topic: bool = False
    topic_config: Texts = []
    omit_topic_config: Texts = []
    append: bool = False
    into_source: bool = False
    retention: Literal["refuse", "hold"] | None = None
    on_damage: Literal["stop", "skip"] | None = None
    transactional: bool = False
    partial: bool = False
    rate: Text | None = None
    speed: Text | None = None
    compression: Text | None = None
    patience: Text | None = None
    job: Text | None = None

    @model_validator(mode="after")
    def _check_names(self) -> "ReplayForm":
        try:
            check_topic(self.named_target)
        except (ValueError, errors.BadName) as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def named_target(self) -> str:
        return self.to_topic.replace("{topic}", parse_topic_folder(parse_topic(self.topic).topic).topic)

    @property
    def arguments(self) -> list[str]:
        """The options of the command, each as one word; the topic and the job are apart."""
        words: list[str] = []
        for name, field in type(self).model_fields.items():
            value, option = getattr(self, name), f"--{(field.alias or name).replace('_', '-')}"
            if name in ("topic", "job") or value in (None, "", False):
                continue
            if value is True:
                words.append(option)
            else:
                words += [f"{option}={each}" for each in (value if isinstance(value, list) else [value]) if each]
        return words


def form_of(fields: dict[str, Any] | str) -> ReplayForm:
    """Return the form of fields, or of their JSON text; raise UsageError."""
    # A job's folder that others can write to is believed no more than a request is.
    try:
        if isinstance(fields, str):
            return ReplayForm.model_validate_json(fields)
        return ReplayForm.model_validate(fields)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise errors.UsageError("invalid replay request", why=f"{where}: {problem['msg']}") from error


T = TypeVar("T")

PLAN_SECONDS = 120.0
MOST_PLANS = 4
BEGIN_SECONDS = 30.0
LOOK_SECONDS = 1.0
LOOKS_AT_ONCE = 8
LOG_BYTES = 4096
KNOWN_SECONDS = 15.0
OVER = frozenset({"complete", "ended", "failed", "interrupted", "undone"})


@stored
class JobLaunch(Sealed, frozen=True, kw_only=True):
    """The request from which the page began a job, as the API takes it, and its user; `{job}/launch.json`."""

    format: str = "blockgz-replay-launch"
    version: int = 1
    form: dict[str, Any]
    user: str
    begun_at: Timestamp


class CommandFailed(errors.BlockgzError):
    """A failed command: its message on stderr, and its exit code."""

    def __init__(self, code: int, text: str) -> None:
        lines = dict(line.split(":", 1) for line in text.splitlines() if line.startswith(("error:", "why:", "do:")))
        words = {name: line.strip() for name, line in lines.items()}
        super().__init__(
            words.get("error", f"the command {errors.end_text(code)}"),
            why=words.get("why", ""),
            remedy=words.get("do", errors.CORE_DUMP if code < 0 else ""),
        )
        self.exit_code = code


class Replays:
    """The jobs in one place; calls of the store are made in threads of their own, for which no other page waits."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        # Jobs and their processes of this page; for each a thread waits, so that none is left as a zombie.
        self._begun: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._threads = ElasticPool(LOOKS_AT_ONCE, "jobs")
        # The newest look at each watched job, and when it began.
        self._looks: dict[str, tuple[float, asyncio.Future[dict[str, Any]]]] = {}
        # Processes that plan.
        self._plans = 0
        # The targets of jobs that have not reported yet.
        self._starting: dict[str, str] = {}
        # The last document of each job, and when it was read.
        self._known: dict[str, tuple[float, dict[str, Any] | None]] = {}

    async def plan(self, form: ReplayForm) -> dict[str, Any]:
        """Return the plan of a replay, as `replayer replay --dry-run --json` prints it; raise CommandFailed or
        StoreBusy.
        """
        self._refuse_without_brokers()
        if self._plans >= MOST_PLANS:
            raise errors.StoreBusy(f"{self._plans} replays are being planned", remedy="try again when one of them is")
        self._plans += 1
        try:
            return await self._planned(form)
        finally:
            self._plans -= 1

    async def _planned(self, form: ReplayForm) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            *self._command(form, "--dry-run"),
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), PLAN_SECONDS)
        except TimeoutError:
            raise CommandFailed(errors.FAILED, f"error: the plan took more than {PLAN_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise CommandFailed(process.returncode, err.decode(errors="replace"))
        plan: dict[str, Any] = msgspec.json.decode(out)["plan"]
        return plan

    async def begin(self, form: ReplayForm, confirmed: str, user: str) -> str:
        """Begin a job, wait until it reports, and return its name. `confirmed` is the target's name, typed by a person.

        Raise UsageError, CutsInDoubt, TargetInUse if another job writes to the same topic, and CommandFailed if the
        command refuses.
        """
        self._refuse_read_only()
        self._refuse_without_brokers()
        if confirmed != form.named_target:
            raise errors.UsageError(
                "the replay is not confirmed",
                why=f"{confirmed[:80]!r} is not the name of its target",
                remedy=f"type {form.named_target}",
            )
        if form.at and form.at_rule is None and (cuts := doubtful(await self.plan(form))):
            raise CutsInDoubt(form.at, cuts)
        name = Job(form.job or new_name(form), "", "").name
        named = form.model_copy(update={"job": name})
        launch = JobLaunch(form=named.model_dump(by_alias=True), user=user, begun_at=wall_clock())
        async with self._alone(name, named.named_target):
            if not await self.in_thread(lambda: self.store.put_if_absent(f"{name}/launch.json", encode(launch), name)):
                raise errors.UsageError(f"there is a job {name}", why="its folder exists", remedy="choose another name")
            await self._run(name, named)
        return name

    @asynccontextmanager
    async def _alone(self, name: str, target: str) -> AsyncIterator[None]:
        """Let no other job that writes to the same topic start at the same time; raise TargetInUse if one writes."""
        starting = next((other for other, topic in self._starting.items() if topic == target), None)
        if starting is not None:
            raise _target_in_use(starting, target)
        self._starting[name] = target
        try:
            for each in await self.all():
                if each["target"] == target and each["id"] != name and each["state"] not in OVER:
                    raise _target_in_use(each["id"], target)
            yield
        finally:
            del self._starting[name]

    async def resume(self, name: str) -> None:
        """Continue a paused job, or rerun with --resume one that ended before it was complete."""
        job = await self.get(name)
        self._refuse_read_only()
        if job["state"] == "paused" or await self.in_thread(self._wanted, job) == "pause":
            await self._change(name, state="run")
            return
        if "resume" not in job["actions"]:
            raise errors.UsageError(f"job {name} cannot be resumed", why=f"it is {job['state']}")
        launch = await self.in_thread(self._launch, name)
        if launch is None:
            raise errors.UsageError(
                f"job {name} cannot be resumed here",
                why="it was not begun by this page",
                remedy="repeat its command with --resume",
            )
        form = form_of(launch.form)
        async with self._alone(name, form.named_target):
            await self._run(name, form, "--resume")

    def _wanted(self, job: dict[str, Any]) -> str | None:
        """Return the last command to a running job, which it may not have reported yet; None if unknown."""
        if job["state"] not in ("planning", "running", "paused"):
            return None
        with suppress(ReplayRefused):
            control = read_control(self.store, job["id"])
            return control.state if control is not None else None
        return None

    async def steer(self, name: str, action: str) -> None:
        """Pause or cancel a job; raise UsageError if the job is not running."""
        job = await self.get(name)
        self._refuse_read_only()
        if action not in job["actions"]:
            goes_on = action == "pause" and await self.in_thread(self._wanted, job) == "run"
            if not goes_on:
                raise errors.UsageError(f"cannot {action} job {name}", why=f"it is {job['state']}")
        await self._change(name, state=action)

    async def limit(self, name: str, rate: str | None) -> None:
        """Change the rate of a running job, None for no limit; raise UsageError."""
        job = await self.get(name)
        self._refuse_read_only()
        if "rate" not in job["actions"]:
            raise errors.UsageError(f"the rate of job {name} cannot be changed", why=f"it is {job['state']}")
        await self._change(name, rate=rate)

    async def all(self) -> list[dict[str, Any]]:
        """Return every job."""
        names = await self.in_thread(lambda: job_names(self.store))
        found = await asyncio.gather(*(self.in_thread(self._listed, name) for name in names))
        return [each for each in found if each]

    async def get(self, name: str) -> dict[str, Any]:
        """Return one job; raise NotInArchive."""
        found = await self.in_thread(self._document, name) if is_job_name(name) else None
        if found is None:
            raise errors.NotInArchive(f"there is no job {name[:80]}", why="no folder has that name", remedy="see /jobs")
        return found

    async def watched(self, name: str) -> dict[str, Any]:
        """Return one job as of a moment ago: one look a second serves all who watch it."""
        began, look = self._looks.get(name, (0.0, None))
        if look is None or (look.done() and time.monotonic() - began >= LOOK_SECONDS):
            look = asyncio.ensure_future(self.get(name))
            look.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._looks[name] = time.monotonic(), look
        return await asyncio.shield(look)

    def log_tail(self, name: str) -> str:
        """Return the last lines of what a job said on stderr, if this machine has them."""
        try:
            with _log_file(name).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    async def _run(self, name: str, form: ReplayForm, *more: str) -> None:
        """Start the process, and wait until it reports or ends."""
        self._known.pop(name, None)
        before = await self.in_thread(self._progress, name)
        with _opened_log(name) as log:
            process = subprocess.Popen(
                self._command(form, "--control", "--yes", *more),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        Thread(target=self._watch, args=(name, process), daemon=True).start()
        self._begun = [*((job, begun) for job, begun in self._begun if begun.poll() is None), (name, process)]
        deadline = time.monotonic() + BEGIN_SECONDS
        while time.monotonic() < deadline:
            progress = await self.in_thread(self._progress, name)
            if progress is not None and (before is None or progress.run != before.run):
                return
            if process.poll() is not None:
                if process.returncode:
                    raise CommandFailed(process.returncode, self.log_tail(name))
                return
            await asyncio.sleep(0.1)

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Wait for a job's process; a death by a signal goes into the job's log and, with its tail, to stderr."""
        if process.wait() < 0:
            lines = (
                f"error: the process of job {name} {errors.end_text(process.returncode)}\ndo:    {errors.CORE_DUMP}\n"
            )
            print(f"{self.log_tail(name)}{lines}", end="", file=sys.stderr)
            with suppress(OSError), _log_file(name).open("a") as log:
                log.write(lines)

    async def in_thread(self, call: Callable[..., T], *given: Any) -> T:
        """Return the result of a call that asks the store of jobs."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *given))

    async def _change(self, name: str, **changes: Any) -> None:
        await self.in_thread(lambda: change_control(self.store, name, **changes))

    def _listed(self, name: str) -> dict[str, Any] | None:
        """Return a job for a list; a job that has ended is read only once in a while."""
        looked_at, known = self._known.get(name, (0.0, None))
        if known is None or known["state"] not in OVER or time.monotonic() - looked_at > KNOWN_SECONDS:
            self._known[name] = time.monotonic(), (known := self._document(name))
        return known

    def _document(self, name: str) -> dict[str, Any] | None:
        """Return a job as the API gives it; None if the folder holds none."""
        store, folder, locks = self.store, JobFolder(self.store, name), lock_folder()
        launch, progress, summary, request, failure = self._launch(name), None, None, None, None
        state: JobState | None = None
        try:
            request = folder.request()
            signs = job_signs(store, name, locks)
            progress, state = signs.reported, job_state(signs, this_process(), wall_clock())
            summary = summary_of(folder) if request is not None and progress is None else None
        except (
            ReplayRefused,
            errors.FormatError,
        ) as error:  # it is damaged; that a store does not answer says nothing of it
            failure = failure_of(error)
            with suppress(ReplayRefused):
                state = "running" if is_running(locks, name) else None
        if request is None and launch is None and progress is None and failure is None:
            return None
        is_starting = failure is None and self._is_starting(name, progress)
        if is_starting:
            state = "planning"
        elif state is None:
            state = "complete" if summary is not None and summary.complete else "ended"
        if progress is not None and progress.failure is not None and state == "failed":
            failure = {"error": progress.failure.error, "why": progress.failure.why, "do": progress.failure.do}
        before = progress.records_before if progress else 0
        done = before + progress.records if progress else summary.records if summary else 0
        total = before + progress.total if progress and progress.total is not None else None
        return {
            "id": name,
            "kind": "replay",
            "title": _title(request, launch, name),
            "source": request.folder if request else None,
            "target": request.target if request else _named_target(launch),
            "transactional": request.transactional if request else None,
            "user": launch.user if launch else None,
            "created_at_ms": launch.begun_at if launch else request.begun_at if request else None,
            "state": state,
            "progress": {"done": done, "all": done if state == "complete" else total, "unit": "records"},
            "records_before": before,
            "bytes": progress.bytes if progress else None,
            "seconds": progress.seconds if progress else None,
            "rate": progress.rate if progress else None,
            "updated_at_ms": progress.updated_at if progress else None,
            "lanes": [
                {"partition": lane.lane, "written": lane.written, "done": lane.done, "all": lane.all}
                for lane in (progress.lanes if progress else ())
            ],
            "failure": failure,
            "actions": self._actions(
                state,
                is_begun=request is not None,
                has_launch=launch is not None,
                steerable=progress is not None and not is_starting,
            ),
        }

    def _is_starting(self, name: str, progress: JobProgress | None) -> bool:
        """Return whether a process of this page runs the job and has not reported yet; it would lose a command now."""
        running = {job: process for job, process in self._begun if process.poll() is None}
        if name not in running:
            return False
        return progress is None or progress.attempt_host.rpartition(":")[2] != str(running[name].pid)

    def _actions(self, state: str, *, is_begun: bool, has_launch: bool, steerable: bool) -> list[str]:
        """Return the actions that this page offers for a job now."""
        settings = self._settings
        if state == "undone":
            return []
        actions = ["prove"] if state in OVER and is_begun and settings.has_brokers else []
        if not settings.allow_replay or state == "complete":
            return actions
        if state in ("running", "planning", "paused") and steerable:
            return ["resume" if state == "paused" else "pause", "rate", "cancel"]
        return ["resume", *actions] if state in OVER and has_launch else actions

    def _launch(self, name: str) -> JobLaunch | None:
        key = f"{name}/launch.json"
        found = self.store.get(key)
        with suppress(errors.BlockgzError):
            return decode(found.body, JobLaunch, key) if found else None
        return None

    def _progress(self, name: str) -> JobProgress | None:
        with suppress(errors.BlockgzError):
            return read_progress(self.store, name)
        return None

    @cached_property
    def store(self) -> ToolStore:
        """The folders of jobs."""
        return open_store(jobs_place(self._settings.jobs), self._settings.place.s3)

    def _refuse_read_only(self) -> None:
        if not self._settings.allow_replay:
            raise errors.UsageError(
                "this page only reads",
                why="it was started without --allow-replay",
                remedy="start it with --allow-replay",
            )

    def _refuse_without_brokers(self) -> None:
        if not self._settings.has_brokers:
            raise errors.UsageError(
                "this page knows no Kafka cluster", why="it was started without -b", remedy="start it with -b HOST:PORT"
            )

    def _command(self, form: ReplayForm, *options: str) -> list[str]:
        """Return the command of a form; what loads code can only be passed on as it was given, in arguments."""
        loading = [f"-X{name}={value}" for name, value in self._settings.kafka.items() if name in LOADS_CODE]
        job = [f"--job={form.job}"] if form.job else []
        words = [*loading, *form.arguments, *job, "--json", *options, "--", form.topic]
        return [sys.executable, "-m", "replayer", "replay", *words]

    def _environment(self) -> dict[str, str]:
        """Return the page's own environment with the places of archive, jobs and brokers, so that arguments show none
        of them.
        """
        return os.environ | environment_of(self._settings)


def doubtful(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cuts of a plan by time for which a person has to choose a rule, and has not."""
    return [cut for cut in plan["cuts"] if cut["doubt"] is not None and not cut["is_chosen"]]


def new_name(form: ReplayForm) -> str:
    """Return a name for the job of a form."""
    return f"{re.sub('[^A-Za-z0-9._-]', '-', form.named_target)[:60]}-{datetime.now(UTC):%Y%m%dT%H%M%S}"


def environment_of(settings: ServeSettings) -> dict[str, str]:
    """Return the variables by which a command gets the archive, the jobs and the cluster of a page."""
    harmless = {
        name: value for name, value in settings.kafka.items() if name not in LOADS_CODE and name != "bootstrap.servers"
    }
    variables = {f"BLOCKGZ_{name.upper()}": str(value) for name, value in settings.options.items() if value is not None}
    return variables | {"BLOCKGZ_KAFKA_PROPERTIES": shlex.join(f"{name}={value}" for name, value in harmless.items())}


def _target_in_use(name: str, target: str) -> TargetInUse:
    return TargetInUse(
        f"job {name} writes to topic {target}",
        why="records of two jobs would be mixed there",
        remedy="wait until it is complete, or cancel it; or choose another topic",
    )


def _named_target(launch: JobLaunch | None) -> str | None:
    """Return the target of a job that has not written yet."""
    with suppress(errors.BlockgzError, ValueError):
        return form_of(launch.form).named_target if launch is not None else None
    return None


def _title(request: JobRequest | None, launch: JobLaunch | None, name: str) -> str:
    if request is not None:
        return f"{request.folder} to {request.target}"
    return f"{launch.form.get('topic')} to {launch.form.get('to_topic')}" if launch is not None else name


def _log_file(name: str) -> Path:
    return lock_folder() / f".{name}.log"


def _opened_log(name: str) -> Any:
    path = _log_file(name)
    try:
        make_private_folder(path.parent)
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600), "wb")
    except OSError as error:
        raise errors.UsageError(
            f"the log of job {name} cannot be written", why=str(error), remedy="make $XDG_STATE_HOME writable"
        ) from error
