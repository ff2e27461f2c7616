"""The application behind the page: static files, and JSON about pipelines whose DAGs the user may read.

It writes nothing. A replay is started by the browser, which asks Airflow's own API to trigger the DAG. All routes are
in one function; what they answer is in the modules beside this one.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Body, FastAPI, HTTPException, Query, Response
from fastapi.responses import JSONResponse

from exactbatch.airflow.connections import kafka_properties
from exactbatch.airflow.page.airflow_versions import browsers_send_session, depend_until_answered
from exactbatch.airflow.page.brokers import Brokers, LogState, PastEnds
from exactbatch.airflow.page.dags import PipelineDag, PipelineDags, read_task_times, with_members
from exactbatch.airflow.page.databases import Databases, airflow_connection, describe_error
from exactbatch.airflow.page.guard import (
    GuardedApp,
    MayEdit,
    MayReadLogs,
    MaySee,
    MayTrigger,
    Room,
    SameOrigin,
    SignedIn,
    User,
    allowed,
    readable_dags,
    refusal,
    with_readable_runs,
)
from exactbatch.airflow.page.views import (
    build_batch_view,
    build_overview_view,
    build_partition_views,
    build_pipeline_view,
    build_record_view,
    build_strip_view,
    preview_view,
)
from exactbatch.errors import ConfigurationError, NotRegistered
from exactbatch.kafka.broker import KafkaBroker
from exactbatch.ledger import Streams
from exactbatch.ledger.overview_rows import OverviewRows, PartitionPosition
from exactbatch.operations.coverage_strip import load_strips, look_for_gaps
from exactbatch.operations.overview import LedgerSummary, find_lag, load_summaries, stored_at
from exactbatch.operations.replay_preview import preview_registered
from exactbatch.operations.unprocessed import load_forwarding
from exactbatch.planning.request import parse_request
from exactbatch.postgres.connection import transaction

_STATIC: Final = resources.files("exactbatch.airflow.page") / "static"
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_RECORD_BYTES: Final = 20_000  # of a rejected record's value that are sent
# Lag over the last day, as far as the newest batches reach back.
_LAG_EVERY, _LAG_POINTS, _LAG_BATCHES = 1800, 48, 600  # seconds, points, batches
_GAPS: Final = 100  # in one answer
_MOST: Final = 2**62  # above every batch ID and offset
Offset = Annotated[int, Query(ge=0, le=_MOST)]


def create_app() -> FastAPI:
    """Return the application."""
    app = GuardedApp(title="exactbatch", docs_url=None, redoc_url=None, openapi_url=None)
    turn = depend_until_answered(Room())  # ends before the answer is sent, however slowly it is read
    EndsAt = Annotated[float, turn]
    # The checks of what a user may do need threads, too: each route waits for its turn first.
    data = APIRouter(prefix="/data/pipelines", dependencies=[turn])
    files = {file.name: file.read_bytes() for file in _STATIC.iterdir() if file.is_file()}
    dags, databases, brokers, past_ends = PipelineDags(), Databases(), Brokers(), PastEnds()

    def find_dag(dag_id: str) -> PipelineDag:
        found = dags.find([dag_id])
        if not found:
            raise HTTPException(404, "this DAG is not the DAG of a pipeline")
        for dag in found:
            if not dag.member and not dag.is_tables:
                return dag
        raise HTTPException(
            404,
            "this DAG has many tables or task groups: the page of all pipelines lists each by its own name",
        )

    def find_summary(connection: Any, dag_id: str, **options: int) -> LedgerSummary:
        summary = load_summaries(connection, [dag_id], **options).get(dag_id)
        if summary is None:
            raise NotRegistered(
                f"pipeline {dag_id!r} is not registered in the ledger of its connection. Run `exactbatch register` for "
                f"it once."
            )
        return summary

    def watch(dag: PipelineDag, summary: LedgerSummary) -> None:
        # The same of a pipeline for every route: what one of them leaves out would be forgotten until another asks.
        brokers.watch(
            dag.kafka,
            dag.pipeline,
            summary.topics,
            summary.stored,
            may_be_overdue=summary.definition.freshness is not None,
        )

    def watched(dag: PipelineDag, summary: LedgerSummary) -> LogState:
        watch(dag, summary)
        return brokers.state(dag.kafka)

    # Without a session in the request, the files, which hold no data, are for everybody.
    signed_in = [SignedIn] if browsers_send_session() else []

    @app.get("/", dependencies=signed_in)
    async def page() -> Response:
        return await static("index.html")

    # Needs no thread: also while every turn is taken, the page loads, and tries again by itself.
    @app.get("/static/{name}", dependencies=signed_in)
    async def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "not found")
        return Response(files[name], media_type=_TYPES.get(name[name.rfind(".") :], "text/plain"))

    @data.get("")
    def pipelines(user: User, ends_at: EndsAt) -> JSONResponse:
        found = dags.find(readable_dags(user))
        seen = with_readable_runs(user, [dag.dag_id for dag in found])
        found = [dag for dag in found if dag.dag_id in seen]
        owners = dags.owners() if any(dag.is_tables for dag in found) else {}
        summaries: dict[str, LedgerSummary] = {}
        problems: dict[str, str] = {}
        shown: list[PipelineDag] = []
        for conn_id in sorted({dag.postgres for dag in found}):
            of_database = [dag for dag in found if dag.postgres == conn_id]
            try:
                with databases.connection(conn_id, ends_at) as connection:
                    of_database = with_members(connection, of_database, owners)
                    summaries |= load_summaries(connection, [dag.pipeline for dag in of_database])
            except Exception as error:
                # One ledger that cannot be read does not hide the others.
                problems[conn_id] = describe_error(error)
            shown += of_database
        found = sorted(shown, key=lambda dag: dag.pipeline)
        for dag in found:
            if (summary := summaries.get(dag.pipeline)) is not None:
                watch(dag, summary)
        states = {conn_id: brokers.state(conn_id) for conn_id in sorted({dag.kafka for dag in found})}
        now = datetime.now(UTC)
        rows = [
            build_overview_view(
                dag, summaries.get(dag.pipeline), states[dag.kafka], problems.get(dag.postgres), now
            )
            for dag in found
        ]
        for row in rows:
            # Few pipelines fail at a time: the rights on others are not asked for.
            if row["error"] and "batch_id" in row["error"] and not allowed(user, row["dag_id"])["read_logs"]:
                row["error"] = _hidden(row)
        return JSONResponse({"pipelines": rows, "now": now.isoformat()})

    @data.get("/{dag_id}", dependencies=[MaySee])
    def pipeline(dag_id: str, user: User, ends_at: EndsAt) -> JSONResponse:
        dag, may, now = find_dag(dag_id), allowed(user, dag_id), datetime.now(UTC)
        with databases.connection(dag.postgres, ends_at) as connection:
            summary = find_summary(connection, dag_id)
            with transaction(connection):
                forwarding = load_forwarding(Streams(connection), dag_id)
        state = watched(dag, summary)
        view = build_pipeline_view(dag, summary, state, forwarding, now)
        if view["error"] and "batch_id" in view["error"] and not may["read_logs"]:
            view["error"] = _hidden(view)
        return JSONResponse({**view, "may": may, "now": now.isoformat()})

    @data.get("/{dag_id}/strips", dependencies=[MaySee])
    def strips(
        dag_id: str,
        ends_at: EndsAt,
        first: Offset | None = None,
        until: Offset | None = None,
        steps: Annotated[int, Query(ge=1, le=2000)] = 300,
        skip: Offset = 0,
        partitions: Annotated[int, Query(ge=1, le=50)] = 20,
    ) -> JSONResponse:
        dag = find_dag(dag_id)
        with databases.connection(dag.postgres, ends_at) as connection:
            summary = find_summary(connection, dag_id, batches=0)
            positions = summary.positions
            places = build_partition_views(positions, watched(dag, summary))
            begin, end = _scale(positions, places, first, until)
            shown = positions[skip : skip + partitions]
            drawn = load_strips(connection, dag_id, shown, begin, end, steps=steps)
        return JSONResponse(
            {
                "first": begin,
                "until": end,
                "all": len(positions),
                "skip": skip,
                "strips": [
                    {**place, **build_strip_view(strip)}
                    for place, strip in zip(places[skip : skip + partitions], drawn, strict=False)
                ],
            }
        )

    @data.get("/{dag_id}/gaps", dependencies=[MaySee])
    def gaps(
        dag_id: str,
        ends_at: EndsAt,
        skip: Offset = 0,
        partitions: Annotated[int, Query(ge=1, le=50)] = 20,
        first: Offset = 0,
    ) -> JSONResponse:
        """Some rows at a time: `next` is where the next request goes on, with fewer partitions to skip and look at."""
        dag = find_dag(dag_id)
        with databases.connection(dag.postgres, ends_at) as connection:
            with transaction(connection):
                positions = OverviewRows(connection).positions([dag_id])[skip : skip + partitions]
            found = look_for_gaps(connection, dag_id, positions, first=first)
        topics = {each.topic_id: each.topic for each in positions}
        following = None
        if found.next is not None:
            number, offset = found.next
            following = {"skip": skip + number, "partitions": partitions - number, "first": offset}
        return JSONResponse(
            {
                "gaps": [
                    [topics[gap.topic_id], gap.partition, gap.from_offset, gap.until_offset]
                    for gap in found.gaps[:_GAPS]
                ],
                "rows": found.rows,
                "next": following,
            }
        )

    @data.get("/{dag_id}/batches", dependencies=[MaySee])
    def batches(
        dag_id: str,
        user: User,
        ends_at: EndsAt,
        before: Offset = _MOST,
        limit: Annotated[int, Query(ge=1, le=300)] = 50,
    ) -> JSONResponse:
        dag, may = find_dag(dag_id), allowed(user, dag_id)
        with databases.connection(dag.postgres, ends_at) as connection, transaction(connection):
            listed = OverviewRows(connection).page_of_batches(dag_id, before=before, limit=limit)
        run_ids = sorted({each.batch.run_id for each in listed if each.batch.run_id})
        times = read_task_times(dag_id, run_ids)
        return JSONResponse(
            {
                "batches": [
                    build_batch_view(
                        each, times, spark_history_url=dag.spark_history_url, may_read_logs=may["read_logs"]
                    )
                    for each in listed
                ]
            }
        )

    @data.get("/{dag_id}/lag", dependencies=[MaySee])
    def lag(dag_id: str, ends_at: EndsAt) -> JSONResponse:
        dag, now = find_dag(dag_id), datetime.now(UTC)
        with databases.connection(dag.postgres, ends_at) as connection:
            summary = find_summary(connection, dag_id, batches=0)
            with transaction(connection):
                newest = OverviewRows(connection).page_of_batches(dag_id, before=_MOST, limit=_LAG_BATCHES)
        state = watched(dag, summary)
        logs = [log for topic in summary.topics for log in state.logs.get(topic, ())]
        # Whole intervals, so that the ends of logs that were found once are found again.
        latest = now.timestamp() // _LAG_EVERY * _LAG_EVERY
        past = (datetime.fromtimestamp(latest - _LAG_EVERY * n, UTC) for n in range(_LAG_POINTS))
        # What Kafka said before a time tells nothing of where the log ended then.
        times = [at for at in past if state.taken_at is not None and at <= state.taken_at]
        stored = stored_at(summary.positions, newest, times)
        ends = past_ends.ends_at(dag.kafka, logs, sorted(stored)) if logs else {}
        points = [(at.timestamp(), max(0, end - stored[at])) for at, end in sorted(ends.items())]
        if logs:
            points.append((now.timestamp(), find_lag(summary, logs, state.taken_at).lag))
        return JSONResponse({"series": [[at for at, _ in points], [records for _, records in points]]})

    @data.get("/{dag_id}/rejects", dependencies=[MaySee, MayReadLogs])
    def rejects(dag_id: str, ends_at: EndsAt) -> JSONResponse:
        dag = find_dag(dag_id)
        with databases.connection(dag.postgres, ends_at) as connection, transaction(connection):
            groups = OverviewRows(connection).reject_reasons(dag_id, limit=50)
        return JSONResponse({"groups": list(map(asdict, groups))})

    @data.get("/{dag_id}/rejects/list", dependencies=[MaySee, MayReadLogs])
    def rejects_of_kind(
        dag_id: str,
        ends_at: EndsAt,
        kind: str | None = None,
        topic_id: UUID = UUID(int=0),  # noqa: B008 - immutable
        partition: Annotated[int, Query(ge=-1, le=_MOST)] = -1,
        offset: Annotated[int, Query(ge=-1, le=_MOST)] = -1,
    ) -> JSONResponse:
        dag = find_dag(dag_id)
        with databases.connection(dag.postgres, ends_at) as connection, transaction(connection):
            rows = OverviewRows(connection).rejects_of_kind(
                dag_id, kind, after=(topic_id, partition, offset), limit=100
            )
        return JSONResponse({"rejects": [{**asdict(row), "topic_id": str(row.topic_id)} for row in rows]})

    @data.get("/{dag_id}/rejects/record", dependencies=[MaySee, MayReadLogs, MayEdit])
    def rejected_record(
        dag_id: str, ends_at: EndsAt, topic_id: UUID, partition: Offset, offset: Offset
    ) -> JSONResponse:
        dag = find_dag(dag_id)
        with databases.connection(dag.postgres, ends_at) as connection, transaction(connection):
            record = OverviewRows(connection).rejected_record(
                dag_id, topic_id, partition, offset, limit=_RECORD_BYTES
            )
        if record is None:
            raise HTTPException(404, "no such reject: a replay may have replaced it")
        return JSONResponse(build_record_view(record))

    @data.post("/{dag_id}/preview", dependencies=[MaySee, MayTrigger])
    def preview(
        dag_id: str, ends_at: EndsAt, _: SameOrigin, conf: Annotated[dict[str, Any], Body()]
    ) -> JSONResponse:
        dag = find_dag(dag_id)
        try:
            request = parse_request(conf)
        except ConfigurationError as error:
            return refusal(422, type(error).__name__, str(error))
        if request is None or request.window is not None:
            raise HTTPException(422, "give ranges or batch_ids")
        with databases.connection(dag.postgres, ends_at) as connection:
            definition = find_summary(connection, dag_id).definition
            broker = KafkaBroker(kafka_properties(airflow_connection(dag.kafka)), settle=0)
            found = preview_registered(
                connection, broker, definition, request, replays_compacted=dag.replays_compacted
            )
            return JSONResponse(preview_view(found, definition))

    app.include_router(data)
    return app


def _hidden(row: dict[str, Any]) -> dict[str, Any]:
    """Return an error without its message, which may quote values."""
    return {**row["error"], "message": "You need the right to read this DAG's task logs to see the message."}


def _scale(
    positions: Sequence[PartitionPosition], places: list[dict[str, Any]], first: int | None, until: int | None
) -> tuple[int, int]:
    """Return the offsets between which strips are drawn: by default, from the starts of the logs to their ends."""
    starts = [place["earliest"] for place in places if place["earliest"] is not None]
    starts = starts or [each.first_offset for each in positions] or [0]
    ends = [place["high_watermark"] for place in places if place["high_watermark"] is not None]
    ends += [each.next_offset for each in positions] or [1]
    begin = min(starts) if first is None else first
    end = max(ends) if until is None else until
    return begin, max(end, begin + 1)
