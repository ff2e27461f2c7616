"""The faults of the soak: which comes when is drawn from the seed; each is healed before the next."""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any, Final

import psutil
import psycopg2
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from exactbatch.kafka.broker import KafkaBroker
from exactbatch.local.child_process import wait_until_ended
from exactbatch.local.server import Server
from exactbatch.local.stack_error import LocalStackError
from soak.forwarders import Forwarder
from soak.pipelines import SHORT_TOPIC
from soak.work import Slot, Work
from support.faults.proxy import BOTH, Cut, CutAfter, DropCommitAnswer, HalfOpen, Proxy, Refuse, Stall
from support.faults.servers import Servers

EVERY_S: Final = 10.0
_STARTS: Final = 5
# How often each comes, among the others.
KINDS: Final = {
    "kill": 3,
    "error": 3,
    "executor": 3,
    "stop": 2,
    "plan": 1,
    "driver": 3,
    "jvm": 1,
    "worker": 3,
    "forwarder": 3,
    "postgres_stop": 1,
    "postgres_kill": 2,
    "broker": 2,
    "both": 1,
    "session": 3,
    "cut": 2,
    "cut_after": 2,
    "refuse": 1,
    "stall": 2,
    "half_open": 1,
    "lose_answer": 3,
    "retention": 2,
}
# These wait for a batch, whose driver makes them come.
ARMED: Final = ("kill", "error", "executor", "stop", "plan")


class Faults:
    """A thread that makes one fault after another, every ten seconds on average, until stop()."""

    def __init__(
        self,
        work: Work,
        servers: Servers,
        slots: Sequence[Slot],
        forwarders: Sequence[Forwarder],
        every: float = EVERY_S,
    ) -> None:
        self._work, self._stack, self._networks, self._slots = work, servers.stack, servers.networks, slots
        self._forwarders = forwarders
        self._every = every
        self._chance = random.Random(f"{work.seed} faults")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="faults", daemon=True)
        # How often each kind came, and how often it was drawn and found nothing to meet.
        self.came: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self._counted, self._began = 0, 0.0
        # What retention has removed of each partition: nothing else may be recorded as lost.
        self.removed: dict[int, int] = {}

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Let the last fault heal."""
        self._stopping.set()
        self._thread.join(180)
        assert not self._thread.is_alive(), "expected the last fault to heal"

    def _guarded(self) -> None:
        try:
            begun = due = time.monotonic()
            while not self._stopping.is_set():
                # Some moments do not come: the next ones then come sooner.
                behind = self._come < (due - begun) / self._every
                due += self._chance.expovariate(1 / self._every) * (0.5 if behind else 1)
                if self._stopping.wait(max(0.0, due - time.monotonic())):
                    return
                (kind,) = self._chance.choices(list(KINDS), list(KINDS.values()))
                if kind in ARMED:
                    with self._work.lock:
                        self._work.armed.append(kind)
                else:
                    before, self._began = self._counted, time.monotonic()
                    getattr(self, f"_{kind}")()
                    (self.came if self._counted > before else self.missed)[kind] += 1
        except BaseException as error:
            self._work.failed(error)

    @property
    def _come(self) -> int:
        """Return the number of faults that have occurred or wait for a batch."""
        with self._work.lock:
            return self._work.faults.total() + len(self._work.armed)

    def _driver(self) -> None:
        if slot := self._busy():
            assert slot.driver is not None
            slot.driver.kill()
            self._count("driver killed at a random moment")

    def _jvm(self) -> None:
        if slot := self._busy():
            assert slot.driver is not None
            slot.driver.doomed = True
            for each in slot.driver.children():
                with suppress(psutil.NoSuchProcess):
                    if each.name() == "java":
                        each.kill()
                        self._count("JVM killed at a random moment")
                        return

    def _worker(self) -> None:
        """Python workers come and go: the first that is there."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not self._stopping.is_set():
            for slot in self._chance.sample(self._slots, len(self._slots)):
                driver = slot.driver
                if self._work.running.get(slot.number) and driver and (workers := driver.workers()):
                    self._work.hurt_running()
                    with suppress(psutil.NoSuchProcess):
                        self._chance.choice(workers).kill()
                        self._count("Python worker killed at a random moment")
                    return
            time.sleep(0.02)

    def _forwarder(self) -> None:
        """Kill a forwarder that sends, or stop it for a while; the next one may die at a named moment."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not self._stopping.is_set():
            for each in self._chance.sample(self._forwarders, len(self._forwarders)):
                if not each.is_busy:
                    continue
                time.sleep(self._chance.uniform(0, 0.3))
                if self._chance.random() < 0.3:
                    each.hold(self._chance.uniform(0, 4))
                    self._count("forwarder stopped at a random moment")
                else:
                    each.kill(arm=self._chance.random() < 0.5)
                    self._count("forwarder killed at a random moment")
                return
            time.sleep(0.02)

    def _postgres_stop(self) -> None:
        """Stop Postgres as `pg_ctl stop -m immediate` does."""
        pid = self._stack.postgres.pid
        assert pid is not None
        hurt = self._work.hurt_running()
        process = psutil.Process(pid)
        process.send_signal(signal.SIGQUIT)
        assert wait_until_ended([process], 30)
        self._pause()
        self._restart(self._stack.postgres)
        self._healed("Postgres stopped at once and restarted", hurt)

    def _postgres_kill(self) -> None:
        hurt = self._work.hurt_running()
        self._stack.postgres.kill()
        self._pause()
        self._restart(self._stack.postgres)
        self._healed("Postgres killed and restarted", hurt)

    def _broker(self) -> None:
        hurt = self._work.hurt_running()
        self._stack.broker.kill()
        self._pause()
        self._restart(self._stack.broker)
        self._healed("broker killed and restarted", hurt)

    def _both(self) -> None:
        hurt = self._work.hurt_running()
        self._stack.broker.kill()
        self._stack.postgres.kill()
        self._pause()
        self._restart(self._stack.postgres)
        self._restart(self._stack.broker)
        self._healed("broker and Postgres killed and restarted", hurt)

    def _session(self) -> None:
        """Postgres ends one of the connections that batches have."""
        deadline = time.monotonic() + 5
        with closing(psycopg2.connect(self._stack.postgres_dsn)) as connection:
            connection.autocommit = True
            while time.monotonic() < deadline and not self._stopping.is_set():
                with connection.cursor() as cursor:
                    cursor.execute(
                        "select application_name, pg_terminate_backend(pid) from pg_stat_activity where "
                        "pid = (select pid from pg_stat_activity where application_name like 'exactbatch%' "
                        "and application_name <> 'exactbatch audit' order by random() limit 1)"
                    )
                    if ended := cursor.fetchall():
                        self._healed(f"connection ended: {ended[0][0]}", self._work.hurt_running())
                        return
                time.sleep(0.02)

    def _retention(self) -> None:
        """Remove the beginning of a partition, often up to its very end, which no batch has reached."""
        log = self._chance.choice(self._asked())
        until = log.high_watermark
        if self._chance.random() < 0.5:
            until = self._chance.randrange(log.earliest, log.high_watermark + 1)
        admin = AdminClient(dict(self._stack.kafka_properties))
        for future in admin.delete_records([TopicPartition(SHORT_TOPIC, log.partition, until)]).values():
            future.result(60)
        # A broker that is killed may have forgotten what it removed last.
        self.removed[log.partition] = max(until, self.removed.get(log.partition, 0))
        self._healed("beginning of the log removed by retention", {"lossy"})

    def _cut(self) -> None:
        name, proxy = self._network()
        hurt = self._work.hurt_running()
        proxy.inject(Cut())
        self._healed(f"connections to {name} reset", hurt)

    def _cut_after(self) -> None:
        """Wherever in a message or a COPY that is."""
        name, proxy = self._network()
        proxy.inject(CutAfter(self._chance.randrange(1, 20_000), self._chance.choice(BOTH)))
        if proxy.fired.wait(10):
            self._healed(f"connections to {name} reset in the middle of a message", self._work.hurt_running())
        proxy.heal()

    def _refuse(self) -> None:
        name, proxy = self._network()
        hurt = self._work.hurt_running()
        proxy.inject(Refuse())
        self._pause(4)
        proxy.heal()
        self._healed(f"{name} not to be reached", hurt | self._work.hurt_running())

    def _stall(self) -> None:
        """Now and then for longer than Postgres lets a transaction sit idle."""
        name, proxy = self._network()
        hurt = self._work.hurt_running()
        proxy.inject(Stall())
        self._pause(8)
        proxy.heal()
        self._healed(f"network to {name} stalled", hurt | self._work.hurt_running())

    def _half_open(self) -> None:
        name, proxy = self._network()
        hurt = self._work.hurt_running()
        direction = self._chance.choice(BOTH)
        proxy.inject(HalfOpen(direction))
        self._pause(4)
        proxy.heal()
        self._healed(f"network to {name} half open", hurt | self._work.hurt_running())

    def _lose_answer(self) -> None:
        """The COMMIT of a publish or of a range arrives, and its answer does not."""
        proxy = self._networks["Postgres"]
        proxy.inject(DropCommitAnswer(b"exactbatch.coverage"))
        if proxy.fired.wait(15):
            self._healed("answer to a COMMIT lost", self._work.hurt_running())
        proxy.heal()

    def _network(self) -> tuple[str, Proxy]:
        return self._chance.choice(sorted(self._networks.items(), key=lambda each: each[0]))

    def _asked(self) -> Any:
        return KafkaBroker(dict(self._stack.kafka_properties)).known_partitions([SHORT_TOPIC])

    def _count(self, kind: str) -> None:
        self._counted += 1
        self._work.count_fault(kind, self._began)

    def _healed(self, kind: str, pipelines: set[str]) -> None:
        self._count(kind)
        for each in pipelines:
            self._work.wants_audit(each)

    def _restart(self, server: Server) -> None:
        """Start a server; for a while, something else may have its port."""
        for attempt in range(_STARTS):
            try:
                server.start()
                return
            except LocalStackError:
                if attempt == _STARTS - 1:
                    raise
                time.sleep(3)

    def _pause(self, most: float = 2) -> None:
        time.sleep(self._chance.uniform(0, most))

    def _busy(self) -> Slot | None:
        """A slot whose driver processes a batch, soon; its batch is hurt."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not self._stopping.is_set():
            for slot in self._chance.sample(self._slots, len(self._slots)):
                if (job := self._work.running.get(slot.number)) and slot.driver and not slot.driver.doomed:
                    time.sleep(self._chance.uniform(0, 1))
                    job.hurt = True
                    return slot if slot.driver else None
            time.sleep(0.02)
        return None
