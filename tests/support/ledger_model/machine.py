"""The state machine: each step is done by the ledger and by its model."""

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from psycopg2 import sql
from psycopg2.extras import execute_values

from exactbatch import Append, Json, Limits, Pipeline
from exactbatch.batch.publishing.fences import check_publishable, read_sink_facts
from exactbatch.batch.publishing.publish import Published, publish
from exactbatch.batch.staging.staging_tables import StagingTables, create_rejects, create_rows, identifier
from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.errors import (
    Fenced,
    StagedRowsDiffer,
)
from exactbatch.ledger import DagRun, Ledger
from exactbatch.offsets import OffsetRange, split_ranges
from exactbatch.planning.freeze_advance import freeze_advance
from exactbatch.planning.freeze_replay import Preview, freeze_replay, preview_replay
from exactbatch.planning.request import ReplayRequest, RequestedRange
from exactbatch.planning.run import RunPlan, plan_run
from exactbatch.postgres.connection import transaction
from exactbatch.sinks.writers import find_writer
from support.ledger_model.comparison import (
    compare_batches,
    compare_coverage,
    compare_target,
    compare_times,
    results_of,
)
from support.ledger_model.log import (
    MINUTES,
    MOST_PARTITIONS,
    T0,
    TOPIC_IDS,
    FakeLog,
    Key,
    Ranges,
    Record,
    as_ranges,
    records,
    written,
)
from support.ledger_model.model import (
    LOSS,
    Expected,
    Launch,
    Model,
    ModelBatch,
    ModelRun,
    check_takes,
)
from support.ledger_model.steps import (
    LIMITS,
    NO_LIMITS,
    PLAN_CRASHES,
    PUBLISH_CRASHES,
    STEPS,
    WINDOWS,
    Crash,
    outcome_of,
)


class LedgerMachine(RuleBasedStateMachine):
    """Two pipelines of one target, their log, and the model of both."""

    def __init__(self, connection: Any, lineage: Literal["record", "batch"], tally: Counter[str]) -> None:
        super().__init__()
        self.connection, self.lineage, self.tally = connection, lineage, tally
        self.log = FakeLog()
        self.models: list[Model] = []
        self.keeps_all = False
        self.attempts = 0
        self.clock = 0

    @initialize(
        starts=st.tuples(*[st.sampled_from(("earliest", "latest"))] * 2),
        on_loss=st.tuples(*[st.sampled_from(("fail", "skip"))] * 2),
        keeps_all=st.booleans(),
        logs=st.lists(records(0, MINUTES - 1), min_size=2, max_size=3),
        first=st.booleans(),
    )
    def begin(
        self,
        starts: Any,
        on_loss: Any,
        keeps_all: bool,
        logs: Sequence[list[Record | None]],
        first: bool,
    ) -> None:
        """`keeps_all`: nothing is removed from the log; `first`: both pipelines process what there is."""
        self.keeps_all = keeps_all
        for topic, log in zip(["a", "b", "a"], logs, strict=False):
            self.log.add_partition(topic, log)
        sink = Append("public.target", lineage=self.lineage)
        with transaction(self.connection) as cursor:
            # The same numbers in each example, so that one that fails is told as it was found.
            cursor.execute("set local session_replication_role to replica")
            cursor.execute("truncate exactbatch.pipeline restart identity cascade")
            cursor.execute("set local session_replication_role to origin")
            cursor.execute("drop table if exists public.target")
            for name, start, loss in zip(("one", "two"), starts, on_loss, strict=True):
                pipeline = Pipeline(
                    name=name,
                    topics=tuple(TOPIC_IDS),
                    value=Json("name text"),
                    sink=sink,
                    start=start,
                    on_loss=loss,
                )
                Ledger(self.connection).registry.register(pipeline, share_topics=True)
                self.models.append(Model(pipeline))
            writer = find_writer(pipeline.traits)
            writer.prepare(cursor, pipeline.value.columns)
            self.seen = read_sink_facts(cursor, writer)
        for model in self.models if first else ():
            self._process_what_is_new(model, program=0)

    def teardown(self) -> None:
        for model in self.models:
            for launch in model.launches:
                self._drop(launch)

    def did(self, *what: str) -> None:
        self.tally[": ".join(what)] += 1

    @rule(what=STEPS, who=st.integers(0, 1), data=st.data())
    def step(self, what: str, who: int, data: st.DataObject) -> None:
        model = self.models[who]
        if what in ("records", "late records", "transaction", "partition", "retention"):
            self._move_log(what, data)
        elif what == "new records are processed":
            self.log.records[data.draw(self._keys(), label="partition")] += data.draw(
                records(0, MINUTES - 1), label="records"
            )
            self._process_what_is_new(model, data.draw(st.integers(0, 2), label="program"))
        elif what == "advance":
            limits = data.draw(LIMITS, label="limits")
            crash = self._draw_crash(model, data)
            self._advance(model, limits, crash)
        elif what.startswith("replay"):
            self._replay(what, model, data)
        elif what == "two replays at once":
            self._two_replays(model, data)
        elif what == "loss during a batch":
            self._loss_during_batch(model, data)
        elif what in ("stage", "publish", "process"):
            self._launch(what, model, data)
        else:
            self._dag_run(what, model, data)

    # -- the log moves

    def _keys(self) -> st.SearchStrategy[Key]:
        return st.sampled_from(sorted(self.log.records))

    def _move_log(self, what: str, data: st.DataObject) -> None:
        self.did("log", what)
        key = data.draw(self._keys(), label="partition")
        if what == "records":
            self.log.records[key] += data.draw(records(0, MINUTES - 1), label="records")
        elif what == "late records":
            self.log.records[key] += data.draw(records(0, 1), label="records")
        elif what == "transaction" and self.log.held.pop(key, None) is None:
            self.log.held[key] = len(self.log.records[key])  # nothing from here on can be read until it ends
        elif what == "partition" and sum(topic == key[0] for topic, _ in self.log.records) < MOST_PARTITIONS:
            self.log.add_partition(key[0], data.draw(records(0, MINUTES - 1), label="records"))
        elif what == "retention" and not self.keeps_all:
            some = st.integers(self.log.earliest[key], self.log.stable(key))
            self.log.earliest[key] = data.draw(some, label="earliest")

    # -- plans

    def _draw_crash(self, model: Model, data: st.DataObject) -> str | None:
        """Draw where the planner fails; sometimes, a batch is published while the planner asks the broker."""
        crash = data.draw(PLAN_CRASHES, label="crash")
        waiting = [each for each in model.launches if model.batches[each.tables.batch_id].status == "planned"]
        if crash is None and waiting and data.draw(st.booleans(), label="meanwhile"):
            launch = data.draw(st.sampled_from(waiting), label="published meanwhile")
            self.log.meanwhile = lambda: self._publish(model, launch)
        return crash

    def _advance(self, model: Model, limits: Limits, crash: str | None = None) -> None:
        pipeline = replace(model.pipeline, limits=limits)
        found = outcome_of(lambda: freeze_advance(self.connection, self.log, pipeline, origin="cli"), crash)
        self._planned("advance", model, found, model.advance(self.log), crash, limits=limits)

    def _process_what_is_new(self, model: Model, program: int) -> None:
        """Plan, launch and publish without any fault."""
        batches = len(model.batches)
        self._advance(model, NO_LIMITS)
        if len(model.batches) > batches:
            launch = self._stage(model, model.batches[max(model.batches)], program)
            assert launch is not None
            self._publish(model, launch)

    def _replay(self, what: str, model: Model, data: st.DataObject) -> None:
        if what == "replay of ranges":
            request = self._draw_ranges(model, data)
        elif what == "replay of window":
            request = ReplayRequest(window=data.draw(WINDOWS, label="window"))
        elif any(each.batches for each in self.models):
            request = self._draw_batches(model, data)
        else:
            return
        self._plan_replay(what, model, request, data)

    def _plan_replay(self, what: str, model: Model, request: ReplayRequest, data: st.DataObject) -> None:
        request = replace(request, available_only=data.draw(st.booleans(), label="available_only"))
        self._preview(model, request)
        crash = self._draw_crash(model, data)
        seen = model.seen()
        found = outcome_of(
            lambda: freeze_replay(self.connection, self.log, model.pipeline, request, origin="cli").batch_id,
            crash,
        )
        self._planned(what, model, found, model.replay(self.log, request, seen=seen), crash)

    def _loss_during_batch(self, model: Model, data: st.DataObject) -> None:
        """Remove all records of a batch that is under way: no later plan can supersede it."""
        self._move_log("records", data)
        self._advance(model, NO_LIMITS)
        waiting = [each for each in model.batches.values() if each.status == "planned"]
        launch = self._stage(model, waiting[-1], program=0) if waiting else None
        if not self.keeps_all:
            self.log.earliest = {each: self.log.stable(each) for each in self.log.earliest}
        self._advance(model, NO_LIMITS)
        if launch is not None:
            self._publish(model, launch)

    def _two_replays(self, model: Model, data: st.DataObject) -> None:
        """Both are planned before either is published, in any order."""
        before = set(model.batches)
        committed = [each.batch_id for each in model.batches.values() if each.status == "committed"]
        nested = len(committed) > 1 and data.draw(st.booleans(), label="one within the other")
        if nested:
            # With lineage="batch", the second no longer covers all that the first, once published, stands for.
            pair = data.draw(st.permutations(committed), label="batches")[:2]
            for batch_ids in (pair, pair[:1]):
                self._plan_replay("replay of batches", model, ReplayRequest(batch_ids=tuple(batch_ids)), data)
        else:
            for _ in range(2):
                self._replay("replay of ranges", model, data)
        launches = []
        for batch_id in sorted(set(model.batches) - before):
            launches.append(self._stage(model, model.batches[batch_id], program=batch_id % 3))
        if not nested and data.draw(st.booleans(), label="newer first"):
            launches.reverse()
        for each in launches:
            if each is not None:
                self._publish(model, each)

    def _draw_batches(self, model: Model, data: st.DataObject) -> ReplayRequest:
        """Mostly what can be replayed; now and then a batch that is planned, superseded, or another pipeline's."""
        committed = [each.batch_id for each in model.batches.values() if each.status == "committed"]
        every = sorted(batch_id for each in self.models for batch_id in each.batches)
        some = committed if committed and data.draw(st.integers(0, 4), label="committed") > 0 else every
        asked = data.draw(st.lists(st.sampled_from(some), min_size=1, max_size=2), label="batches")
        return ReplayRequest(batch_ids=tuple(asked))

    def _draw_ranges(self, model: Model, data: st.DataObject) -> ReplayRequest:
        ranges = []
        keys = st.sampled_from(sorted(model.stored)) if model.stored else self._keys()
        for _ in range(data.draw(st.sampled_from((1, 1, 1, 2, 3)), label="ranges")):
            key = data.draw(keys, label="partition")
            head, earliest = model.stored.get(key, 0), self.log.earliest[key]
            low = earliest if earliest < head and data.draw(st.integers(0, 3), label="held") else 0
            from_offset = data.draw(st.integers(low, max(low, head - 1)), label="from")
            # Now and then it is empty, or ends past the stored offset: both are refused.
            odd = from_offset >= head or data.draw(st.integers(0, 9), label="odd") == 9
            until = st.sampled_from((from_offset, head + 1)) if odd else st.integers(from_offset + 1, head)
            until_offset = data.draw(until, label="until")
            ranges.append(RequestedRange(*key, from_offset, until_offset))
        return ReplayRequest(ranges=tuple(ranges))

    def _preview(self, model: Model, request: ReplayRequest) -> None:
        """It tells what the plan does a moment later; that it writes nothing is seen at the end of the step."""
        found = outcome_of(lambda: preview_replay(self.connection, self.log, model.pipeline, request))
        expected = model.replay(self.log, request)
        if expected.error is not None:
            assert isinstance(found, expected.error), found
        else:
            assert isinstance(found, Preview), found
            assert as_ranges(found.plan.ranges) == expected.ranges
            offsets = {
                (key, offset)
                for key, ranges in expected.ranges.items()
                for each in ranges
                for offset in range(*each)
            }
            results = [rows for _, rows in results_of(self.log, model, offsets)]
            assert found.rows == sum(len(rows) for rows in results if rows is not None)
            assert sum(each.rejects for each in found.retracted) == results.count(None)

    # -- DAG runs

    def _dag_run(self, what: str, model: Model, data: st.DataObject) -> None:
        """A run plans: a new one, or one that Airflow tries again, a user clears, or deletes and creates again."""
        runs = model.runs
        if what == "run" or not runs:
            what = "run"
            mine = ModelRun(DagRun("dag", f"run {len(model.runs) + 1}", 0, self._now()), "schedule", None)
            model.runs.append(mine)
        else:
            mine = data.draw(st.sampled_from(runs), label="run")
        if what == "clear":
            # Cleared in mid-run, only the number changes; it rises without a plan when other tasks are cleared.
            ended = data.draw(st.booleans(), label="had ended")
            number = mine.run.clear_number + data.draw(st.integers(1, 2), label="clears")
            started_at = self._now() if ended else mine.run.started_at
            mine.run = replace(mine.run, clear_number=number, started_at=started_at)
        elif what == "create again":
            mine.run = replace(mine.run, clear_number=0, started_at=self._now())
            mine.lives.append({})
        if what != "retry":
            self._draw_wish(model, mine, data)
        self._plan_run(what, model, mine, data.draw(PLAN_CRASHES, label="crash"))

    def _now(self) -> datetime:
        self.clock += 1
        return T0 + timedelta(seconds=self.clock)

    def _draw_wish(self, model: Model, mine: ModelRun, data: st.DataObject) -> None:
        """Draw the request of a run: an advance or a replay."""
        wish = data.draw(st.sampled_from(("forward", "backfill", "ranges", "window")), label="wish")
        mine.origin = {"forward": "schedule", "backfill": "backfill"}.get(wish, "manual")
        mine.request = None
        if wish == "ranges":
            mine.request = self._draw_ranges(model, data)
        elif wish != "forward":
            mine.request = ReplayRequest(window=data.draw(WINDOWS, label="window"))
        if mine.request is not None:
            only = data.draw(st.booleans(), label="available_only")
            mine.request = replace(mine.request, available_only=only)

    def _plan_run(self, name: str, model: Model, mine: ModelRun, crash: str | None) -> None:
        found = outcome_of(
            lambda: plan_run(
                self.connection, self.log, model.pipeline, mine.run, mine.request, origin=mine.origin
            ),
            crash,
        )
        if isinstance(found, RunPlan):
            found = found.batch and found.batch.batch_id
        if mine.run.clear_number == 0 and mine.run not in mine.lives[-1]:
            mine.empty = None  # neither a retry of a plan nor a clear: the run may be another one of this id
        self._planned(name, model, found, model.run(self.log, mine), crash, mine=mine)

    def _planned(
        self,
        name: str,
        model: Model,
        found: Any,
        expected: Expected,
        crash: str | None,
        *,
        limits: Limits = NO_LIMITS,
        mine: ModelRun | None = None,
    ) -> None:
        """Compare how planning ended with what was expected, and let the model follow."""
        self.log.meanwhile = None
        if expected.error is not None:
            assert isinstance(found, expected.error), f"expected {expected.error}, found {found!r}"
            self.did(name, expected.error.__name__)
            return
        if expected.earlier is not None:
            assert found == expected.earlier, f"expected batch {expected.earlier}, found {found!r}"
            self.did(name, "kept its plan")
            return
        is_empty = not (expected.ranges or any(expected.takes.values()))
        if isinstance(found, Crash):
            self.did(name, "crashed")
            if crash == "plan.before_commit":
                return
        else:
            assert found is None or isinstance(found, int), f"expected a plan, found {found!r}"
            assert (found is None) == is_empty
        self._follow(model, expected)
        with transaction(self.connection):
            ledger = Ledger(self.connection)
            (new,) = ledger.batches.read_page(model.pipeline.name, limit=1) if not is_empty else (None,)
            ranges = as_ranges(ledger.batches.read_ranges(new.batch_id)) if new is not None else {}
        if new is None:
            if mine is not None and expected.kind == "advance":
                mine.empty = mine.run.clear_number
            self.did(name, "nothing to process")
            return
        assert isinstance(found, Crash) or new.batch_id == found
        assert new.batch_id > max((0, *model.batches))
        if expected.kind == "advance":
            check_takes(expected, ranges, limits)
        else:
            assert ranges == expected.ranges
        self._follow_batch(model, new.batch_id, ranges, expected, mine)
        self.did(name, f"planned {expected.kind}" + (" of a clear" if expected.origin == "clear" else ""))

    def _follow(self, model: Model, expected: Expected) -> None:
        """Apply what planning stores even if there is nothing to process: seeds, losses, and resolved times."""
        for key, head in expected.heads.items():
            began = expected.began[key]
            began = head if began is None else began
            model.began.setdefault(key, began)
            for offset in range(began, head):
                model.owner.setdefault(key, {})[offset] = LOSS
                self.did("offsets lost")
            model.stored[key] = head
        model.times.update(expected.times)

    def _follow_batch(
        self, model: Model, batch_id: int, ranges: Ranges, expected: Expected, mine: ModelRun | None
    ) -> None:
        generation = 0
        for each in model.batches.values():
            same_run = mine is not None and each.run is not None and each.run.run_id == mine.run.run_id
            generation += same_run
            newer_advance = each.kind == expected.kind == "advance"
            if each.status == "planned" and (same_run or newer_advance):
                each.status = "superseded"
                self.did("superseded", each.kind)
        run = mine.run if mine is not None else None
        model.batches[batch_id] = ModelBatch(
            batch_id, expected.kind, expected.origin, ranges, run, generation
        )
        if mine is not None:
            mine.lives[-1][mine.run] = batch_id

    # -- launches

    def _launch(self, what: str, model: Model, data: st.DataObject) -> None:
        """Stage a batch, publish what was staged, or both at once. Any launch may overtake any other."""
        if not (model.launches if what == "publish" else model.batches):
            return
        if what == "publish":
            crash = data.draw(PUBLISH_CRASHES, label="crash")
            self._publish(model, data.draw(st.sampled_from(model.launches), label="launch"), crash)
            return
        launch = self._stage(
            model,
            self._draw_batch(model, data),
            program=data.draw(st.integers(0, 2), label="program"),
            noise=data.draw(st.booleans(), label="failed attempts"),
            damaged=data.draw(st.integers(0, 5), label="damaged") == 5,
        )
        if what == "process" and launch is not None:
            crash = data.draw(PUBLISH_CRASHES, label="crash")
            self._publish(model, launch, crash)
            if crash is not None or data.draw(st.booleans(), label="twice"):
                self._publish(model, launch)

    def _draw_batch(self, model: Model, data: st.DataObject) -> ModelBatch:
        """Mostly one that waits for it."""
        planned = [each for each in model.batches.values() if each.status == "planned"]
        some = (
            planned
            if planned and data.draw(st.integers(0, 5), label="planned") > 0
            else list(model.batches.values())
        )
        return data.draw(st.sampled_from(some), label="batch")

    def _stage(
        self, model: Model, batch: ModelBatch, program: int, *, noise: bool = False, damaged: bool = False
    ) -> Launch | None:
        """Stage a batch, as _load() and the tasks of a batch job do."""
        with transaction(self.connection):
            ledger = Ledger(self.connection)
            real = ledger.batches.read(batch.batch_id)
            found = outcome_of(lambda: check_publishable(ledger, model.pipeline, real))
            ranges = ledger.batches.read_ranges(batch.batch_id)
        expected = model.publishable(batch)
        if expected != "go on":
            if expected == "committed before":
                assert found is None
                assert real.status == "committed"
            else:
                assert isinstance(found, Fenced)
            self.did("launch", expected)
            return None
        assert found is None
        assert real.status != "committed"
        if any(each.from_offset < self.log.earliest[each.topic, each.partition] for each in ranges):
            self.did("launch", "OffsetsLost")  # the tasks cannot read them any more
            return None
        tables = StagingTables(batch.batch_id, secrets.randbits(62))
        staged: list[Staged] = []
        with transaction(self.connection) as cursor:
            create_rejects(cursor, tables)
            create_rows(cursor, tables, model.pipeline.value.columns)
            for split in split_ranges(ranges, parts=3, smallest=2):
                if noise:
                    # An attempt that Spark did not accept, of another program so that it would be seen.
                    self._stage_split(cursor, tables, split, program + 1)
                staged.append(self._stage_split(cursor, tables, split, program))
            rows, rejects = (sum(getattr(e, name) for e in staged) for name in ("rows", "rejects"))
            if damaged and rows + rejects:
                table = identifier(tables.rows if rows else tables.rejects)
                delete = (
                    "delete from {0} where ctid = (select max(ctid) from {0} where task_attempt = any(%s))"
                )
                cursor.execute(sql.SQL(delete).format(table), ([each.attempt for each in staged],))
        launch = Launch(real.plan_id, tables, staged, program, damaged and rows + rejects > 0)
        model.launches.append(launch)
        if len(model.launches) > 4:
            self._drop(model.launches.pop(0))
        self.did("launch", "staged")
        return launch

    def _stage_split(self, cursor: Any, tables: StagingTables, split: OffsetRange, program: int) -> Staged:
        self.attempts += 1
        key = split.topic, split.partition
        rows: list[tuple[Any, ...]] = []
        rejects: list[tuple[Any, ...]] = []
        records = tombstones = 0
        for offset in range(split.from_offset, split.until_offset):
            record = self.log.records[key][offset]
            if record is None:
                continue
            records += 1
            count = record.rows_by(program)
            if count is None:
                reason = f"not for program {program}"
                rejects.append((*key, offset, None, b"bad", "[]", reason, self.attempts))
                continue
            tombstones += count == 0
            for row in range(count):
                value = written(key, offset, program, row)
                rows.append((self.attempts, key[1], offset, record.at, key[0], value))
        for table, values in ((tables.rows, rows), (tables.rejects, rejects)):
            if values:
                statement = sql.SQL("insert into {} values %s").format(identifier(table))
                execute_values(cursor, statement.as_string(cursor), values)
        return Staged(split, self.attempts, records, len(rows), len(rejects), tombstones)

    def _drop(self, launch: Launch) -> None:
        with transaction(self.connection) as cursor:
            tables = [identifier(each) for each in (launch.tables.rows, launch.tables.rejects)]
            cursor.execute(sql.SQL("drop table {}, {}").format(*tables))

    def _publish(self, model: Model, launch: Launch, crash: str | None = None) -> None:
        batch = model.batches[launch.tables.batch_id]
        expected = model.published(batch, launch)
        found = outcome_of(
            lambda: publish(
                self.connection,
                model.pipeline,
                find_writer(model.pipeline.traits),
                plan_id=launch.plan_id,
                tables=launch.tables,
                columns=model.pipeline.value.columns,
                staged=StagedBatch.of(launch.staged),
                topic_ids=self.log.topic_ids(sorted({topic for topic, _ in batch.ranges})),
                seen=self.seen,
            ),
            crash,
        )
        before_staged = "publish.after_advance" if batch.kind == "advance" else "publish.after_retract"
        if isinstance(found, Crash) and (
            expected == "committed" or (expected == "staged rows differ" and crash == before_staged)
        ):
            self.did("publish", "crashed")
            if crash == "publish.after_commit":
                model.commit(batch, launch.program)
            return
        self.did("publish", expected, batch.kind if expected == "committed" else "")
        if expected.startswith("Fenced"):
            assert isinstance(found, Fenced), f"expected {expected}, found {found!r}"
            assert "None" not in str(found)  # it names the batch that took this one's place
        elif expected == "staged rows differ":
            assert isinstance(found, StagedRowsDiffer), found
        else:
            assert isinstance(found, Published), found
            assert found.wrote == (expected == "committed")
            if found.wrote:
                model.commit(batch, launch.program)

    @invariant()
    def ledger_and_target_are_those_of_the_model(self) -> None:
        self.did("steps")
        with transaction(self.connection) as cursor:
            compare_coverage(cursor, self.models)
            compare_batches(cursor, self.models, self.log)
            compare_times(cursor, self.models)
            compare_target(cursor, self.models, self.log, self.lineage)
            for model in self.models:
                # What the auditor takes for history, which is no gap.
                assert Ledger(self.connection).coverage.read_first_offsets(model.pipeline) == {
                    (TOPIC_IDS[key[0]], key[1]): began
                    for key, began in model.began.items()
                    if model.stored[key] > began
                }
