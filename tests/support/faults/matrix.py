"""Fault × moment × sink → outcome. `make faults` runs all of it and writes docs/evidence/faults.md.

A combination is one batch of one pipeline: new records, a try with the fault, what heals it, and another try. It
is exact when the target is what a plain program makes of the log and the auditor finds nothing; nothing else is
believed. The pipelines live on, so what a fault leaves behind would be found under the next ones, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from support.faults.proxy import Cut, CutAfter, DropCommitAnswer, Fault, HalfOpen, Refuse, Stall

Place = Literal["planner", "driver", "worker", "publish", "forwarder", "postgres", "kafka"]

# Sinks whose program is the same until publish: Append stands for them where they are not named.
BATCH_SINKS: Final = (
    "append",
    "upsert",
    "upsert_latest",
    "route",
    "aggregate",
    "transform",
    "by_batch",
    "open_partition",
)
# Those whose programs differ while they read and stage; "shuffle" is a transform that Spark runs in other tasks than
# those that read.
STAGED_SINKS: Final = ("append", "transform", "shuffle", "by_batch")
# Those whose results go back to a topic. What sends them is the same for all sinks.
FORWARDED_SINKS: Final = ("forwarded", "forwarded_upsert")
SINKS: Final = (*BATCH_SINKS, "shuffle", "partition", *FORWARDED_SINKS)


@dataclass(frozen=True)
class Moment:
    """When a fault happens: at a failpoint, or when a proxy sees `seen`; and which sinks it is tried with."""

    name: str
    place: Place
    sinks: tuple[str, ...]
    seen: bytes = b""
    # What a transaction that drops its COMMIT's answer must have sent; None where it has no COMMIT of its own.
    commit: bytes | None = None
    # The batch is a replay of what the pipeline has processed, and not an advance.
    replay: bool = False
    # The fault meets a forwarder that sends what the batch has committed, and not the batch; at this failpoint of it,
    # where a proxy injects it and `seen` comes earlier, too.
    forwarder: bool = False
    at: str = ""

    @property
    def title(self) -> str:
        """Its name in docs/evidence/faults.md."""
        return f"{self.name}, replay" if self.replay else self.name


FAILPOINTS: Final = (
    Moment("plan.before_commit", "planner", ("append",)),
    Moment("plan.after_commit", "planner", ("append",)),
    # The launch is noted in the ledger, in a transaction of its own.
    Moment("launch.before_commit", "driver", ("append",)),
    Moment("launch.after_commit", "driver", ("append",)),
    Moment("job.before_stage", "driver", ("append", "transform", "by_batch")),
    Moment("stage.after_rejects", "worker", STAGED_SINKS),
    Moment("stage.before_copy_commit", "worker", STAGED_SINKS),
    Moment("stage.after_copy_commit", "worker", STAGED_SINKS),
    Moment("job.after_stage", "driver", ("append", "transform", "by_batch")),
    Moment("job.after_close", "driver", ("by_batch",)),
    Moment("publish.before_lock", "publish", BATCH_SINKS),
    Moment("publish.after_advance", "publish", BATCH_SINKS),
    Moment("publish.after_retract", "publish", BATCH_SINKS, replay=True),
    Moment("publish.after_insert", "publish", BATCH_SINKS),
    Moment("forward.after_outbox", "publish", FORWARDED_SINKS),
    Moment("publish.before_commit", "publish", BATCH_SINKS),
    Moment("publish.after_commit", "publish", BATCH_SINKS),
    *(
        Moment(f"forward.{name}", "forwarder", ("forwarded",), forwarder=True)
        for name in (
            "after_attempt",
            "after_begin",
            "after_produce",
            "before_commit",
            "after_commit",
            "before_confirm",
            "after_confirm",
        )
    ),
    Moment("job.before_ranges", "driver", ("partition",)),
    Moment("partition.after_rejects", "worker", ("partition",)),
    Moment("partition.before_locks", "worker", ("partition",)),
    Moment("partition.after_locks", "worker", ("partition",)),
    Moment("partition.before_commit", "worker", ("partition",)),
    Moment("partition.after_commit", "worker", ("partition",)),
    Moment("job.after_ranges", "driver", ("partition",)),
    Moment("partition.before_batch_commit", "publish", ("partition",)),
    Moment("partition.after_batch_commit", "publish", ("partition",)),
)
# Where a process is killed during a replay, which commits as a whole with every sink.
IN_REPLAYS: Final = (
    Moment("stage.before_copy_commit", "worker", STAGED_SINKS, replay=True),
    Moment("stage.after_copy_commit", "worker", STAGED_SINKS, replay=True),
    Moment("job.after_stage", "driver", ("append", "by_batch"), replay=True),
    Moment("publish.after_insert", "publish", (*BATCH_SINKS, "partition"), replay=True),
    Moment("forward.after_outbox", "publish", FORWARDED_SINKS, replay=True),
    Moment("publish.before_commit", "publish", (*BATCH_SINKS, "partition"), replay=True),
    Moment("publish.after_commit", "publish", (*BATCH_SINKS, "partition", *FORWARDED_SINKS), replay=True),
)
_PLAN: Final = b"insert into exactbatch.batch "
_MOVE: Final = b"update exactbatch.stored_offset"
_LAUNCH: Final = b"set application_id ="
_SPLIT: Final = b'_splits" values'
_RANGE: Final = b"with this as"
_BATCH: Final = b"update exactbatch.batch b"
_OUTBOX: Final = b"insert into exactbatch.outbox"
_ATTEMPT: Final = b"set attempted_sequence ="
_CONFIRM: Final = b"set sent_sequence ="
_TRANSACTIONAL_ID: Final = b"exactbatch.forwarded"
ON_THE_WIRE: Final = (
    Moment("Postgres, plan", "postgres", ("append",), _PLAN, _PLAN),
    Moment("Postgres, launch", "postgres", ("append",), _LAUNCH, _LAUNCH),
    Moment("Postgres, COPY", "postgres", STAGED_SINKS, b'copy "', b'copy "'),
    Moment("Postgres, entry of a split", "postgres", ("by_batch",), _SPLIT, _SPLIT),
    Moment("Postgres, publish", "postgres", BATCH_SINKS, _MOVE, _MOVE),
    Moment("Postgres, COPY of a range", "postgres", ("partition",), b'copy "'),
    Moment("Postgres, locks of a range", "postgres", ("partition",), b"for share"),
    Moment("Postgres, accounts of a range", "postgres", ("partition",), _RANGE, _RANGE),
    Moment("Postgres, end of the batch", "postgres", ("partition",), _BATCH, _BATCH),
    Moment("Postgres, outbox", "postgres", FORWARDED_SINKS, _OUTBOX, _OUTBOX),
    Moment(
        "Postgres, attempt of a forwarder", "postgres", ("forwarded",), _ATTEMPT, _ATTEMPT, forwarder=True
    ),
    Moment(
        "Postgres, confirmation of a forwarder",
        "postgres",
        ("forwarded",),
        commit=_CONFIRM,
        forwarder=True,
        at="forward.after_commit",
    ),
    Moment("Kafka, plan", "kafka", ("append",), b"kafka-python"),
    Moment("Kafka, read", "kafka", (*STAGED_SINKS, "partition"), b"confluent-kafka-python"),
    Moment("Kafka, start of a forwarder", "kafka", ("forwarded",), _TRANSACTIONAL_ID, forwarder=True),
    # With "half-open", the broker gets the messages, or commits, and its answer is lost.
    Moment(
        "Kafka, messages of a forwarder", "kafka", ("forwarded",), forwarder=True, at="forward.after_begin"
    ),
    Moment(
        "Kafka, commit of a forwarder", "kafka", ("forwarded",), forwarder=True, at="forward.before_commit"
    ),
)

# At a failpoint. A worker is held, and stopped, for a moment; what publishes, or drives, until another launch has
# tried the same batch; a forwarder until another one has taken its place.
ACTIONS: Final = ("SIGKILL", "exception", "delay", "hold", "SIGSTOP, SIGCONT")
RESTART: Final = "Postgres: immediate stop, start"
BROKER: Final = "broker: SIGKILL, start"
RESTARTS: Final = {
    "plan.before_commit",
    "launch.before_commit",
    "job.before_stage",
    "stage.before_copy_commit",
    "job.after_stage",
    "job.after_close",
    "publish.after_insert",
    "forward.after_outbox",
    "publish.before_commit",
    "forward.after_attempt",
    "forward.after_commit",
    "forward.before_confirm",
    "job.before_ranges",
    "partition.before_commit",
    "job.after_ranges",
    "partition.before_batch_commit",
}
BROKER_KILLS: Final = {
    "job.before_stage",
    "job.after_stage",
    "forward.after_begin",
    "forward.before_commit",
    "job.before_ranges",
}
NETWORK: Final[dict[str, Fault]] = {
    "cut": Cut(),
    "stall": Stall(),
    "half-open": HalfOpen("to_client"),
    "refused": Refuse(),
}
CUT_AFTER: Final = "cut after N bytes"
NO_ANSWER: Final = "answer to COMMIT dropped"


@dataclass(frozen=True)
class Combination:
    """One batch of one sink with one fault at one moment."""

    sink: str
    moment: Moment
    fault: str

    @property
    def in_ranges(self) -> bool:
        """True if each range of the batch is committed separately."""
        return self.sink == "partition" and not self.moment.replay

    @property
    def on_the_wire(self) -> Fault:
        """Return the fault that a proxy injects."""
        if self.fault == NO_ANSWER:
            assert self.moment.commit is not None
            return DropCommitAnswer(self.moment.commit)
        if self.fault == CUT_AFTER:
            return CutAfter(600, "to_server") if self.moment.place == "postgres" else CutAfter(1500)
        return NETWORK[self.fault]

    def __str__(self) -> str:
        return f"{self.sink}: {self.fault} at {self.moment.title}"


def combinations() -> Iterator[Combination]:
    """All of them, moment by moment.

    A broker is killed where the program asks it something afterwards; Postgres is restarted once in each step;
    bytes are counted where there are many, and an answer to COMMIT is dropped where there is a COMMIT.
    """
    for moment in (*FAILPOINTS, *IN_REPLAYS, *ON_THE_WIRE):
        for fault in _faults_at(moment):
            for sink in moment.sinks:
                combination = Combination(sink, moment, fault)
                if not _is_left_out(combination):
                    yield combination


def _faults_at(moment: Moment) -> list[str]:
    if moment in IN_REPLAYS:
        return ["SIGKILL"]
    faults = list(ACTIONS if moment in FAILPOINTS else NETWORK)
    faults += [RESTART] * (moment.name in RESTARTS) + [BROKER] * (moment.name in BROKER_KILLS)
    faults += [CUT_AFTER] * (moment.name in ("Kafka, read", "Postgres, COPY", "Postgres, COPY of a range"))
    return faults + [NO_ANSWER] * (moment.commit is not None)


def _is_left_out(combination: Combination) -> bool:
    """A delay only takes time: one sink of each way to commit is enough. So it is for a driver with a JVM of its
    own, which takes long to start, and has nothing yet before its rows are staged."""
    early = combination.moment.name.startswith("job.before") or combination.sink == "transform"
    return (combination.fault == "delay" and combination.sink not in ("append", "partition")) or (
        combination.moment.place == "driver" and combination.fault.startswith("SIG") and early
    )
