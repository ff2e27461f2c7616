"""`make mutants`: does the suite notice when the program is broken?

Breaks copies of the program, each in one place, and runs the smallest tests that should go red. Exit status
0 only when each of them does, and all are green over the program as it is.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

ROOT: Final = Path(__file__).parents[1]
HOME: Final = Path(os.environ.get("EXACTBATCH_HOME", ROOT / ".local")).absolute()
_TIMEOUT_S: Final = 1200
# `make test` is to notice each mutant, without the slow tests.
_OPTIONS: Final = "-p", "no:cacheprovider", "-m", "not slow", "--hypothesis-profile", "unshrunk"
_BATCH: Final = "tests/integration/test_batch.py"
_FINGERPRINTS: Final = "tests/integration/test_fingerprints.py"
_MOVING: Final = "tests/integration/test_moving_values.py"
_RIGHTS: Final = "tests/integration/test_rights.py"
_CREATED: Final = "tests/integration/test_created_together.py"
_WRITES: Final = "tests/integration/test_target_writes.py"
_AGGREGATE: Final = "tests/integration/test_aggregate.py"
_REPLAY: Final = "tests/integration/test_replay.py"
_PRUNE: Final = "tests/integration/test_prune.py"
_AUDIT: Final = "tests/integration/test_audit.py"
_AUDIT_WORKERS: Final = "tests/integration/test_audit_workers.py"
_OFFSETS: Final = "tests/unit/test_audit_offsets.py"
_JSON_PATHS: Final = "tests/unit/test_json_paths.py"
_REGISTRY: Final = "tests/unit/test_registry_answers.py"
_OTHER_REGISTRIES: Final = "tests/unit/test_other_registries.py"
_HEADER_IDS: Final = "tests/unit/test_schema_id_headers.py"
_HEADER_TOPICS: Final = "tests/integration/test_header_topics.py"
_CHECKS: Final = "tests/integration/test_record_checks.py"
_SETTINGS: Final = "tests/integration/test_connection_settings.py"
_REFUSALS: Final = "tests/faults/test_refusals.py"
_PARTITION: Final = "tests/integration/test_partition_commit.py"
_FAILOVER: Final = "tests/faults/test_failover.py"
_BUTTONS: Final = "tests/integration/test_buttons.py"
_TOGETHER: Final = "tests/integration/test_together.py"
_PATTERNS: Final = "tests/integration/test_topic_patterns.py"
_TABLES: Final = "tests/integration/test_tables_of_topics.py"
_RENAMING: Final = "tests/integration/test_renaming.py"
_PLAN: Final = "tests/integration/test_refused_plan.py"
_LINEAGE: Final = "tests/integration/test_lineage.py"
_ROWS: Final = "tests/integration/test_transform_rows.py"
_SHARED: Final = "tests/integration/test_shared_targets.py"
_REFUSED: Final = "tests/integration/test_refused_records.py"
_BY_BATCH: Final = "tests/integration/test_by_batch.py"
_MERGE: Final = "tests/integration/test_merge.py"
_VERSIONS: Final = "tests/integration/test_postgres_versions.py"
_DEBEZIUM: Final = "tests/unit/test_debezium"
_FLATTENED: Final = "tests/unit/test_flattened.py"
_PLAIN_KEYS: Final = "tests/unit/test_plain_keys.py"
_DAEMON: Final = "tests/unit/test_python_daemon.py"
_TRUNCATES: Final = "tests/integration/test_truncates.py"
_UNAVAILABLE: Final = "tests/integration/test_unavailable_values.py"
_KINDS: Final = "tests/integration/test_target_kinds.py"
_FAST_RANGES: Final = "tests/integration/test_fast_path_ranges.py"
_AUDIT_ORDER: Final = "tests/integration/test_audit_order.py"
_AUDIT_REJECTS: Final = "tests/integration/test_audit_rejects.py"
_AUDIT_TYPES: Final = "tests/integration/test_audit_types.py"
_FORWARD: Final = "tests/integration/test_forward.py"
_PIPELINE_TESTS: Final = "tests/integration/test_testing_postgres.py"
_POSITIONS: Final = "tests/integration/test_positions.py"
_QUESTIONS: Final = "tests/integration/test_questions.py"


@dataclass(frozen=True)
class Mutant:
    """One way to break the program: in `file`, below jobs/exactbatch, `old` becomes `new`, which `tests` see."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS: Final = (
    Mutant(
        "__deleted of a flattened event is ignored",
        "formats/debezium/flattened.py",
        "pc.if_else(pc.fill_null(deleted, False), DELETE, pc.coalesce(op, unknown))",
        "pc.coalesce(op, unknown)",
        (f"{_FLATTENED}::test_text_and_booleans_say_whether_an_event_is_a_delete",),
    ),
    Mutant(
        "the text false of __deleted is taken for true",
        "formats/debezium/flattened.py",
        '        deleted = pc.equal(deleted, "true")\n',
        "        deleted = pc.if_else(deleted.is_valid(), True, pa.scalar(None, pa.bool_()))\n",
        (f"{_FLATTENED}::test_text_and_booleans_say_whether_an_event_is_a_delete",),
    ),
    Mutant(
        "a flattened event may contradict itself",
        "formats/debezium/flattened.py",
        "    if pc.any(contradicts, min_count=0).as_py():\n",
        "    if False:\n",
        (f"{_FLATTENED}::test_what_an_event_says_of_its_deletion_may_not_be_unclear",),
    ),
    Mutant(
        "a flattened insert takes a value of an earlier row",
        "formats/debezium/flattened.py",
        "    unknown = pc.if_else(deleted.is_valid(), UPDATE, _INSERT)\n",
        "    unknown = UPDATE\n",
        (f"{_FLATTENED}::test_only_a_value_of_an_update_is_kept",),
    ),
    Mutant(
        "an object without a field of the columns is a flattened row of nulls",
        "formats/debezium/flattened.py",
        "            if reason := self._why_no_row(found) if found else self._no_field(found):\n",
        "            if reason := None:\n",
        (f"{_FLATTENED}::test_an_object_that_is_no_row_is_a_reject",),
    ),
    Mutant(
        "a null that Connect writes with its schema deletes nothing",
        "formats/upsert_changes.py",
        "            is_null = pc.or_(is_null, decoded.written_nulls)\n",
        "            pass\n",
        (f"{_FLATTENED}::test_a_null_deletes_the_row_of_its_key_however_it_is_written",),
    ),
    Mutant(
        "a compacted log restores values that the source left out",
        "pipeline.py",
        "            and not self.traits.keeps_unavailable\n",
        "",
        (f"{_FLATTENED}::test_a_compacted_log_without_values_that_were_left_out_is_not_replayed",),
    ),
    Mutant(
        "a position within a transaction is a version of flattened events",
        "pipeline.py",
        "            self._check_versions()\n",
        "",
        (f"{_FLATTENED}::test_a_field_that_the_connector_adds_is_no_version",),
    ),
    Mutant(
        "a flattened delete whose key is JSON's null is dropped",
        "formats/upsert_changes.py",
        "                lacking = [at for at in range(len(positions)) if at not in given]\n",
        "                lacking = pc.indices_nonzero(pc.is_null(keys.take(positions))).to_pylist()\n",
        (f"{_FLATTENED}::test_a_delete_whose_key_is_null_is_a_reject_however_it_is_written",),
    ),
    Mutant(
        "a binary key of another length is accepted",
        "formats/single/decoder.py",
        "        fits = pc.fill_null(pc.equal(lengths, width), True)\n",
        "        fits = pc.fill_null(pc.greater_equal(lengths, width), True)\n"
        "        values = pc.binary_slice(values, 0, width)\n",
        (f"{_PLAIN_KEYS}::test_bytes_of_a_type_have_its_width",),
    ),
    Mutant(
        "a binary key is read with its lowest byte first",
        "formats/single/spec.py",
        '    "bigint": (8, ">i8"),\n',
        '    "bigint": (8, "<i8"),\n',
        (f"{_PLAIN_KEYS}::test_bytes_of_a_type_have_its_width",),
    ),
    Mutant(
        "a plain key may have quotes",
        "formats/single/decoder.py",
        "        if not pc.all(is_plain, min_count=0).as_py():\n",
        "        if False:\n",
        (f"{_PLAIN_KEYS}::test_text_that_is_not_of_the_type_is_a_reject",),
    ),
    Mutant(
        "as many rows as records are taken for one each",
        "batch/rows/decode.py",
        "return len(decoded.kept) == records and bool((decoded.kept.to_numpy() == np.arange(records)).all())",
        "return len(decoded.kept) == records",
        (f"{_JSON_PATHS}::test_as_many_rows_as_records_need_not_be_one_each",),
    ),
    Mutant(
        "one bad row of a record leaves the others",
        "formats/decoder.py",
        "    good = pc.invert(pc.is_in(decoded.kept, pa.array(list(reasons), pa.int64())))\n",
        "    good = pa.array([True] * len(decoded.kept))\n",
        (f"{_JSON_PATHS}::test_a_change_without_a_key_rejects_all_changes_of_its_record",),
    ),
    Mutant(
        "a vector takes a number out of range",
        "formats/json/raw_fields.py",
        "    if too_large.any():",
        "    if False:",
        ("tests/unit/test_vectors.py::test_what_is_no_vector_is_refused",),
    ),
    Mutant(
        "a halfvec has the numbers of a vector",
        "formats/json/raw_fields.py",
        "            floats = floats.astype(np.float16)",
        "            floats = floats",
        ("tests/unit/test_vectors.py::test_a_halfvec_has_the_nearest_half",),
    ),
    Mutant(
        "text of a vector may be rounded",
        "sinks/values/exact_values.py",
        'collate "C" and ({value} !~',
        'collate "C" and false and ({value} !~',
        (
            "tests/integration/test_extension_values.py::test_what_is_no_vector_of_the_column_is_a_reject_that_says_so",
        ),
    ),
    Mutant(
        "hstore takes the last of two equal keys",
        "formats/connect/structs.py",
        "    if len(by_key := dict(members)) < len(members):",
        "    if len(by_key := dict(members)) < 0:",
        ("tests/unit/test_vectors.py::test_json_that_hstore_cannot_hold_is_refused",),
    ),
    Mutant(
        "an enveloped null is a row of nulls",
        "formats/json/blocks.py",
        "    return without_envelopes(values) if spec.reads_payloads else values",
        "    return values",
        ("tests/integration/test_unstorable_text.py::test_an_enveloped_null_is_a_tombstone",),
    ),
    Mutant(
        "an enveloped null among documents is a row of nulls",
        "formats/json/decoder.py",
        "without_envelopes(documents) if reads_payloads(self._fields) else documents",
        "documents",
        ("tests/unit/test_json_wrapped.py::test_an_enveloped_null_among_documents_is_a_reject",),
    ),
    Mutant(
        "a tombstone with an enveloped null as its key is lost",
        "formats/json/decoder.py",
        "self._decode_objects(with_nulls(self.spec, values))",
        "self._decode_objects(values)",
        ("tests/integration/test_unstorable_text.py::test_an_enveloped_null_is_a_tombstone",),
    ),
    Mutant(
        "an audit misses enveloped nulls",
        "audit/rowless.py",
        "            return EnvelopedNulls()\n",
        "            return None\n",
        ("tests/integration/test_unstorable_text.py::test_an_enveloped_null_is_a_tombstone",),
    ),
    Mutant(
        "jsonb takes an escaped U+0000",
        "formats/json/raw_fields.py",
        'return refuse_escaped_nul(text) if type_ == "jsonb" else text',
        "return text",
        ("tests/unit/test_json_types.py::test_an_escaped_u0000_is_refused_for_jsonb",),
    ),
    Mutant(
        "json refuses an escaped U+0000",
        "formats/json/raw_fields.py",
        'return refuse_escaped_nul(text) if type_ == "jsonb" else text',
        "return refuse_escaped_nul(text)",
        (
            "tests/unit/test_replaced_text.py::test_a_record_has_the_replacement_only_where_postgres_cannot_hold_its_text",
        ),
    ),
    Mutant(
        "a backslash before u0000 is replaced",
        "formats/cleaned_text.py",
        '[0-9a-fA-F]{2})|\\\\."',
        '[0-9a-fA-F]{2})"',
        (
            "tests/unit/test_replaced_text.py::test_a_record_has_the_replacement_only_where_postgres_cannot_hold_its_text",
        ),
    ),
    Mutant(
        "rows with replaced text come after the others",
        "formats/replaced_text.py",
        "    order = pc.sort_indices(kept)\n",
        "    order = pa.array(range(len(kept)))\n",
        (
            "tests/unit/test_replaced_text.py::test_a_record_has_the_replacement_only_where_postgres_cannot_hold_its_text",
        ),
    ),
    Mutant(
        "records with replaced text are not counted",
        "batch/rows/decode.py",
        "            self.replaced += decoded.replaced\n",
        "",
        (
            "tests/integration/test_unstorable_text.py::test_text_that_postgres_cannot_hold_is_replaced_and_counted",
        ),
    ),
    Mutant(
        "headers of other names are replaced",
        "formats/replaced_text.py",
        "_apply(cleaners.get(name), value)",
        "_apply(next(iter(cleaners.values()), None), value)",
        ("tests/unit/test_replaced_text.py::test_headers_of_other_names_stay",),
    ),
    Mutant(
        "a byte order mark hides the schema of an event",
        "formats/debezium/decoder.py",
        "events = without_marks(values.drop_null())",
        "events = values.drop_null()",
        ("tests/unit/test_debezium.py::test_a_byte_order_mark_does_not_hide_the_schema",),
    ),
    Mutant(
        "the compiled loop takes two columns of one member",
        "formats/json/spec.py",
        "len(members) == len(self.fields) == len(set(members.values()))",
        "len(members) == len(self.fields)",
        ("tests/unit/test_json_kernel.py::test_the_loop_is_not_asked_for_paths_and_defaults",),
    ),
    Mutant(
        "the compiled loop takes the member of the column's name",
        "compiled/json_kernel.py",
        "(column.name if members is None else members[column.name]).encode()",
        "column.name.encode()",
        ("tests/unit/test_json_kernel.py::test_the_loop_takes_members_of_other_names",),
    ),
    Mutant(
        "a default takes the place of a null that is written",
        "formats/json/member_columns.py",
        "    return pa.array([not text for text in written], pa.bool_())\n",
        "    return pa.array([not text or text == _NULL for text in written], pa.bool_())\n",
        (f"{_JSON_PATHS}::test_a_default_stands_for_a_missing_member_and_not_for_null",),
    ),
    Mutant(
        "a member of a path may be given twice as text",
        "formats/json/member_columns.py",
        "            if len(values) > 1:\n",
        "            if False:\n",
        (f"{_JSON_PATHS}::test_a_parent_of_another_type_and_a_member_given_twice_are_rejects",),
    ),
    Mutant(
        "an element after the last one is the next array's",
        "formats/json/fields.py",
        "mask=lengths <= number",
        "mask=lengths < 0",
        (f"{_JSON_PATHS}::test_a_missing_parent_or_element_is_null",),
    ),
    Mutant(
        "values decompress to any size",
        "formats/json/wrapped.py",
        "    if len(data) > MOST_BYTES:\n",
        "    if False:\n",
        ("tests/unit/test_json_wrapped.py::test_a_value_that_decompresses_to_too_much_is_a_reject",),
    ),
    Mutant(
        "an unsigned integer of Protobuf wraps around",
        "formats/protobuf/ways.py",
        "            if not -limit <= number < limit:\n",
        "            number = (number + limit) % (2 * limit) - limit\n            if False:\n",
        ("tests/unit/test_protobuf.py::test_a_value_that_does_not_fit_is_a_reject",),
    ),
    Mutant(
        "a message is decoded as the first type of its schema",
        "formats/protobuf/decoder.py",
        "    return schema_id, tuple(indexes) or (0,), at\n",
        "    return schema_id, (0,), at\n",
        ("tests/unit/test_protobuf.py::test_the_place_of_a_message_type_is_in_the_value",),
    ),
    Mutant(
        "JSON is decoded after the header of a schema of any type",
        "formats/json/decoder.py",
        "        return None if found == _JSON else",
        "        return None if found else",
        ("tests/unit/test_protobuf.py::test_json_after_the_header_of_a_registry",),
    ),
    Mutant(
        "a check that is false passes",
        "batch/staging/uncastable.py",
        "    return [*rules, *check_rules(cursor, columns, pipeline.row_checks, keeps_deletes=keeps_deletes)]\n",
        "    return rules\n",
        (f"{_CHECKS}::test_a_record_for_which_a_check_is_false_is_a_reject",),
    ),
    Mutant(
        "rows that become a partition are not checked",
        "batch/job.py",
        "    if not pipeline.has_row_per_record or pipeline.row_checks or pipeline.forward is not None:\n",
        "    if not pipeline.has_row_per_record or pipeline.forward is not None:\n",
        (f"{_CHECKS}::test_rows_that_could_be_copied_into_a_partition_are_checked",),
    ),
    Mutant(
        "an audit does not know checks",
        "audit/values.py",
        "            *violations(columns, self._pipeline.checks, keeps_deletes=traits.keeps_deletes),\n",
        "",
        (f"{_CHECKS}::test_an_audit_finds_a_row_that_a_check_would_have_rejected",),
    ),
    Mutant(
        "an audit takes any rows for those of a record that gives several",
        "audit/equal_values.py",
        '"sum(t) > sum(e)" if may_lack_rows else "sum(t) <> sum(e)"',
        '"false"',
        (
            "tests/integration/test_json_members.py::test_an_audit_finds_a_wrong_row_among_those_of_a_record",
            "tests/integration/test_json_members.py::test_an_upsert_takes_several_changes_of_a_record",
        ),
    ),
    Mutant(
        "a row of several of a record takes the unchanged columns of another",
        "batch/transform/transform_stager.py",
        "            or self._pipeline.value.gives_several_rows\n",
        "",
        ("tests/integration/test_json_members.py::test_a_transform_gets_a_row_for_each_element",),
    ),
    Mutant(
        "every answer of Postgres is a lost connection",
        "errors/sqlstates.py",
        "    return MEANINGS.get(sqlstate) or MEANINGS.get(sqlstate[:2]) or UNLISTED\n",
        "    return LOST\n",
        ("tests/unit/test_sqlstates.py",),
    ),
    Mutant(
        "a terminal error of an executor is tried again",
        "batch/staging/stage.py",
        "    if isinstance(error, ExactbatchError) and not error.retryable:\n",
        "    if False:\n",
        (f"{_REFUSALS}::test_what_stays_so_on_executor_ends_batch_and_what_may_pass_is_tried_again",),
    ),
    Mutant(
        "an error of psycopg2 gets out",
        "postgres/connection.py",
        "        raise own from error\n",
        "        raise\n",
        ("tests/integration/test_ledger.py::test_a_migration_that_fails_leaves_the_ledger_as_it_was",),
    ),
    Mutant(
        "a statement that Postgres does not answer is waited for without end",
        "postgres/deadlines.py",
        "                        deadline.missed()\n",
        "                        pass\n",
        ("tests/unit/test_deadlines.py::test_a_block_that_takes_too_long_is_told_within_it",),
    ),
    Mutant(
        "a connection is closed at the deadline of a statement that was answered",
        "postgres/deadlines.py",
        "        finally:\n            self._end(deadline)\n",
        "        finally:\n            pass\n",
        ("tests/unit/test_deadlines.py::test_a_block_that_has_ended_misses_nothing",),
    ),
    Mutant(
        "the time in which a COPY reads counts as a wait for Postgres",
        "postgres/deadlines.py",
        "        self._end(deadline)\n        try:\n",
        "        try:\n",
        (
            "tests/unit/test_deadlines.py"
            "::test_the_time_of_a_pause_does_not_count_and_then_all_of_it_begins_again",
        ),
    ),
    Mutant(
        "after a pause, Postgres is waited for without end",
        "postgres/deadlines.py",
        "        finally:\n            self._begin(deadline)\n",
        "        finally:\n            pass\n",
        (
            "tests/unit/test_deadlines.py"
            "::test_the_time_of_a_pause_does_not_count_and_then_all_of_it_begins_again",
        ),
    ),
    Mutant(
        "a Postgres that answers too late gets more rows",
        "postgres/connection.py",
        "        if self.hung_up:\n            raise psycopg2",
        "        if False:\n            raise psycopg2",
        ("tests/unit/test_copy.py::test_a_postgres_that_answers_too_late_gets_no_more",),
    ),
    Mutant(
        "a short deadline is not seen beside a longer one",
        "postgres/deadlines.py",
        "                self._changed.notify()\n",
        "                pass\n",
        (
            "tests/unit/test_deadlines.py::test_a_shorter_deadline_is_kept_beside_longer_ones_that_are_watched_already",
        ),
    ),
    Mutant(
        "a stored offset moves from wherever it stands",
        "ledger/queries/plans.sql",
        "  and s.topic_id = r.topic_id and s.next_offset = r.from_offset\n",
        "  and s.topic_id = r.topic_id\n",
        (f"{_BATCH}::test_a_batch_whose_stored_offset_has_moved_is_fenced",),
    ),
    Mutant(
        "pipelines share tables by whatever rules",
        "ledger/definition.py",
        "        if (difference := _difference(own, other)) is not None:\n",
        "        if False:\n",
        (
            f"{_SHARED}::test_pipelines_whose_values_would_mix_are_refused",
            f"{_SHARED}::test_two_upserts_of_one_target_have_to_agree_on_latest_change",
            f"{_SHARED}::test_aggregates_that_share_target_get_measure_one_after_other",
        ),
    ),
    Mutant(
        "the version of an Upsert is no part of its identity",
        "ledger/definition.py",
        '_IDENTITY: Final = ("target", "sink", "key", "version", "lineage", "other_targets")\n',
        '_IDENTITY: Final = ("target", "sink", "key", "lineage", "other_targets")\n',
        (
            f"{_SHARED}::test_another_version_is_another_identity",
            f"{_SHARED}::test_a_batch_does_not_go_on_by_another_version",
        ),
    ),
    Mutant(
        "two Upserts of one target write different columns",
        "sinks/upsert/writer.py",
        "    if pipelines and (extra := ",
        "    if False and (extra := ",
        (f"{_SHARED}::test_upserts_that_share_a_target_write_the_same_columns",),
    ),
    Mutant(
        "staged rows are not counted",
        "batch/publishing/insert_rows.py",
        "        if staged.get(attempt, 0) != rows:\n",
        "        if False:\n",
        (f"{_BATCH}::test_staged_rows_that_are_gone_at_publish_fail_the_batch",),
    ),
    Mutant(
        "notes of records that a crash has removed are not missed",
        "batch/publishing/publish.py",
        "{**staged.rejects, INTACT: 1}",
        "staged.rejects",
        (
            "tests/integration/test_transform.py::test_notes_of_records_that_a_crash_has_removed_fail_the_batch",
        ),
    ),
    Mutant(
        "rows of every attempt count",
        "sinks/staged_rows.py",
        "task_attempt = any({})",
        "{} is not null",
        (f"{_BATCH}::test_rows_of_attempt_that_spark_did_not_accept_do_not_count",),
    ),
    Mutant(
        "publish commits in the middle",
        "batch/publishing/publish.py",
        '        failpoint("publish.after_insert")\n',
        '        cursor.execute("commit")\n        failpoint("publish.after_insert")\n',
        (
            "tests/faults/test_matrix.py::test_the_try_after_a_fault_is_exact[append: SIGKILL at publish.after_insert]",
        ),
    ),
    Mutant(
        "a superseded batch publishes",
        "batch/publishing/fences.py",
        '    if batch.status == "superseded":\n',
        "    if False:\n",
        ("tests/integration/test_ledger_model.py",),
    ),
    Mutant(
        "an older replay overwrites a newer one",
        "batch/publishing/fences.py",
        "        if newest is not None and newest > batch.batch_id:\n",
        "        if False:\n",
        (f"{_REPLAY}::test_an_older_replay_cannot_overwrite_a_newer_ones_result",),
    ),
    Mutant(
        "a range is read one offset too far",
        "kafka/reader.py",
        "np.searchsorted(offsets, range_.until_offset)",
        "np.searchsorted(offsets, range_.until_offset + 1)",
        ("tests/integration/test_read.py",),
    ),
    Mutant(
        "a range ends one offset too early",
        "kafka/reader.py",
        "            if progress.position >= range_.until_offset:\n",
        "            if progress.position >= range_.until_offset - 1:\n",
        ("tests/integration/test_read.py",),
    ),
    Mutant(
        "an end of the log before the range's is taken for it",
        "kafka/reader.py",
        "            reached = max(reached, progress.end_of_log or 0)\n",
        "            reached = max(reached, range_.until_offset if progress.end_of_log else 0)\n",
        ("tests/integration/test_read.py",),
    ),
    Mutant(
        "aborted records are read",
        "kafka/properties.py",
        '    "isolation.level": Fixed("read_committed", ',
        '    "isolation.level": Fixed("read_uncommitted", ',
        ("tests/integration/test_read.py",),
    ),
    Mutant(
        "a plan goes past open transactions",
        "planning/advance.py",
        "available = [max(0, p.last_stable - position) for p, position in positions]",
        "available = [max(0, p.high_watermark - position) for p, position in positions]",
        ("tests/unit/test_planner.py", "tests/integration/test_advance.py"),
    ),
    Mutant(
        "a server that refuses startup options is sent them again",
        "postgres/dsn.py",
        '        sent = "" if _address(dsn) in _without_options else settings.options()\n',
        "        sent = settings.options()\n",
        ("tests/integration/test_startup_options.py",),
    ),
    Mutant(
        "a first load has no limit",
        "model.py",
        "    max_offsets: int | None = 10_000_000\n",
        "    max_offsets: int | None = None\n",
        ("tests/unit/test_planner.py",),
    ),
    Mutant(
        "lost offsets are skipped without a word",
        "planning/advance.py",
        '    if on_loss == "fail":\n',
        "    if False:\n",
        ("tests/unit/test_planner.py",),
    ),
    Mutant(
        "a replay takes no row back",
        "batch/publishing/publish.py",
        "    writer.retract(cursor, parts)\n",
        "",
        (f"{_REPLAY}::test_only_range_changes_and_coverage_shows_both_batches",),
    ),
    Mutant(
        "a replay takes no reject back",
        "batch/publishing/publish.py",
        "    ledger.rejects.delete(pipeline, parts)\n",
        "",
        (f"{_REPLAY}::test_rejects_are_taken_back_and_written_anew",),
    ),
    Mutant(
        "rows that a replay could not delete are not looked for",
        "sinks/tables/counted_writes.py",
        "    if remaining := int(cursor.fetchone()[0]):\n",
        "    if remaining := 0 * int(cursor.fetchone()[0]):\n",
        (f"{_WRITES}::test_a_replay_whose_deletes_are_kept_back_is_refused",),
    ),
    Mutant(
        "the cause of kept rows is no rule",
        "postgres/catalog.py",
        """self.what in ("trigger", "rule") and""",
        """self.what == "trigger" and""",
        (f"{_WRITES}::test_a_tombstone_whose_delete_is_kept_back_is_refused[rule]",),
    ),
    Mutant(
        "a rule that a target gets while a batch runs goes unnoticed",
        "postgres/catalog.py",
        "and r.rulename <> '_RETURN'",
        "and false",
        (f"{_WRITES}::test_a_target_that_changes_while_a_batch_runs_is_noticed",),
    ),
    Mutant(
        "the refused search ends at a table with a rule",
        "sinks/tables/refused_rows.py",
        """("55000", "0A000")""",
        """("55000",)""",
        (f"{_REFUSED}::test_refused_rows_are_found_in_a_table_with_a_rule",),
    ),
    Mutant(
        "of rows that exclude each other, a refused search keeps the last one",
        "sinks/tables/refused_rows.py",
        """'{} collate "C" nulls first, {}, {}'""",
        """'{} collate "C" nulls first, {}, {} desc'""",
        (f"{_REFUSED}::test_without_rejects_the_error_names_all_offsets[append]",),
    ),
    Mutant(
        "the refused search takes rows that an Upsert replaces for obstacles",
        "sinks/tables/refused_rows.py",
        "        if self._candidates.replaces:\n",
        "        if False:\n",
        (f"{_REFUSED}::test_the_key_of_a_refused_change_keeps_what_older_changes_gave_it",),
    ),
    Mutant(
        "the refused search lets rows of a rejected record exclude others",
        "sinks/tables/refused_rows.py",
        "        self._by_conflict = of_batch == records - (others > 0)\n",
        "",
        (f"{_REFUSED}::test_a_record_with_several_rows_is_rejected_as_a_whole",),
    ),
    Mutant(
        "a refused row excludes others before its own constraints are asked",
        "sinks/tables/refused_rows.py",
        "        partial(_by_rules, cursor, table, candidates),\n",
        "        trial.run,\n        partial(_by_rules, cursor, table, candidates),\n",
        (f"{_REFUSED}::test_a_row_may_refer_to_one_of_its_own_batch",),
    ),
    Mutant(
        "a refused row is one whose check is null",
        "sinks/tables/constraints.py",
        'sql.SQL("not ({})").format(sql.SQL(constraint.expression))',
        'sql.SQL("({}) is not true").format(sql.SQL(constraint.expression))',
        (
            f"{_REFUSED}::test_what_the_target_refuses_is_rejected_in_each_run_retry_replay_and_audit[history-check]",
        ),
    ),
    Mutant(
        "a refused row is one whose parent is in its own batch",
        "sinks/tables/constraints.py",
        "    if constraint.is_own:\n",
        "    if False:\n",
        (f"{_REFUSED}::test_a_row_may_refer_to_one_of_its_own_batch",),
    ),
    Mutant(
        "a unique index over a column that is not written ends the search for refused rows",
        "sinks/tables/refused_rows.py",
        "only_sharing and error.pgcode == UNDEFINED_COLUMN",
        "False",
        (f"{_REFUSED}::test_a_unique_index_may_have_a_column_that_is_not_written",),
    ),
    *(
        Mutant(
            f"rows that share a unique key are tried without others in spite of {what}",
            "sinks/tables/constraints.py",
            "if cursor.fetchone()[0] or not all(each.is_plain and not each.nulls_equal for each in indexes):",
            f"if {condition}:",
            (
                f"{_REFUSED}::test_rows_that_share_a_name_are_tried_with_the_others_that_they_depend_on[{case}]",
            ),
        )
        for what, condition, case in (
            ("a foreign key", "not all(each.is_plain for each in indexes)", "reference"),
            ("an exclusion constraint", "cursor.fetchone()[0]", "exclusion"),
        )
    ),
    Mutant(
        "a full disk or a lock makes a refused row",
        "errors/sqlstates.py",
        "        and meaning(sqlstate) in (_BAD_DATA, _CONSTRAINT, _RAISED, _LIMIT, UNLISTED)\n",
        "",
        (f"{_REFUSED}::test_an_error_of_the_server_makes_no_reject",),
    ),
    Mutant(
        "records of refused rows become rejects although none are allowed",
        "batch/job.py",
        "    if not error.refused or not allowed:\n",
        "    if not error.refused:\n",
        (f"{_REFUSED}::test_without_rejects_the_error_names_all_offsets[append]",),
    ),
    Mutant(
        "records of refused rows are staged as rejects again with the next ones",
        "batch/staging/uncastable.py",
        '            sql.SQL("delete from {} where task_attempt = any({})").format(\n',
        '            sql.SQL("select from {} where task_attempt = any({})").format(\n',
        (f"{_REFUSED}::test_what_several_constraints_refuse_is_found_in_one_batch",),
    ),
    Mutant(
        "refused rows of a target that is partitioned by batch end the batch",
        "batch/job.py",
        "            raise _NotAttachable from error\n",
        "            raise\n",
        (
            f"{_REFUSED}::test_what_the_target_refuses_is_rejected_in_each_run_retry_replay_and_audit[by-batch-check]",
        ),
    ),
    Mutant(
        "the refused rows of a range are counted as its rows",
        "batch/by_partition/partition_commit.py",
        "        rows=rows,\n",
        "        rows=staged.records,\n",
        (
            f"{_REFUSED}::test_what_the_target_refuses_is_rejected_in_each_run_retry_replay_and_audit[by-range-not-null]",
        ),
    ),
    Mutant(
        "what triggers alter is not looked for",
        "sinks/tables/target.py",
        "        return name_triggers(self.unusual_facts(cursor))\n",
        '        return name_triggers(()) or ""\n',
        (f"{_WRITES}::test_a_trigger_that_alters_what_is_written_is_refused",),
    ),
    Mutant(
        "rows that a trigger changes beside those of the batch are not counted",
        "sinks/tables/counted_writes.py",
        '        return (self.inserted + self.updated, self.deleted, self.files) == (rows, 0, "")\n',
        "        return True\n",
        (f"{_WRITES}::test_trigger_that_changes_rows_which_batch_does_not_write_is_refused",),
    ),
    Mutant(
        "a range is counted before its deferred triggers run",
        "batch/by_partition/range_copy.py",
        "            cursor.execute(CHECK_CONSTRAINTS)\n",
        "            pass\n",
        (f"{_PARTITION}::test_what_waits_for_commit_is_done_before_rows_are_counted",),
    ),
    Mutant(
        "equal values are taken for the same bytes",
        "sinks/values/byte_equality.py",
        "record_image_ne(row({}), row({}))",
        "row({}) is distinct from row({})",
        (f"{_WRITES}::test_upsert_writes_value_that_is_only_equal_to_old_one",),
    ),
    Mutant(
        "a target that changes while a batch runs is not noticed",
        "batch/publishing/fences.py",
        "    check_unchanged(writer.traits.target, seen, facts)\n",
        "",
        (f"{_WRITES}::test_a_target_that_changes_while_a_batch_runs_is_noticed",),
    ),
    Mutant(
        "a truncate behind which the counts are right is not noticed",
        "batch/by_partition/range_copy.py",
        "    if done.files and triggers:\n",
        "    if False:\n",
        (f"{_PARTITION}::test_a_truncate_behind_which_the_counts_are_right_is_noticed",),
    ),
    Mutant(
        "what is covered is not read back",
        "batch/publishing/publish.py",
        "    if covered != expected:\n",
        "    if False:\n",
        (f"{_WRITES}::test_coverage_that_a_trigger_alters_is_noticed",),
    ),
    Mutant(
        "a target is created in a schema of others",
        "sinks/tables/target_definition.py",
        "    check_schema(table.spec, table.name[0])\n",
        "",
        (f"{_WRITES}::test_nothing_is_created_in_a_schema_of_others",),
    ),
    Mutant(
        "offsets of different logs order the changes of a key",
        "ledger/registry.py",
        "        if own.version or not pipeline.traits.keeps_deletes or not companions:\n            return\n",
        "        return\n",
        (
            "tests/integration/test_shared_targets.py::test_offsets_of_different_logs_do_not_order_the_changes_of_a_key",
        ),
    ),
    Mutant(
        "a plan begins with a log that is not the one of the target",
        "planning/freeze_advance.py",
        "            if planned.seeds:\n                ledger.registry.check_one_log(pipeline)\n",
        "",
        (
            "tests/integration/test_advance.py::"
            "test_topic_created_again_is_not_loaded_into_an_upsert_without_a_version",
        ),
    ),
    Mutant(
        "a row without a key from before the results were forwarded stops its replay",
        "batch/publishing/outbox.py",
        "key is null and change <> 'row'",
        "false",
        (f"{_FORWARD}::test_a_row_from_before_that_has_a_null_key_is_retracted_without_a_message",),
    ),
    Mutant(
        "a committed batch is withdrawn",
        "operations/withdraw.py",
        '(batch.pipeline, batch.kind, batch.status) != (pipeline.name, "replay", "planned")',
        "batch.pipeline != pipeline.name",
        (f"{_PRUNE}::test_a_planned_replay_blocks_until_it_is_withdrawn",),
    ),
    Mutant(
        "batches that share a target do not wait for each other",
        "batch/publishing/fences.py",
        "        writer.tables[-1].lock(cursor)\n",
        "        pass\n",
        (f"{_WRITES}::test_two_pipelines_that_share_a_target_see_each_other",),
    ),
    Mutant(
        "two Upserts that share a target do not wait for each other",
        "batch/publishing/fences.py",
        "    if writer.traits.is_derived or not writer.traits.keeps_every_row:\n",
        '    if writer.traits.lineage == "batch":\n',
        (f"{_WRITES}::test_two_pipelines_that_share_a_target_see_each_other",),
    ),
    Mutant(
        "two Aggregates that share a target do not wait for each other",
        "batch/publishing/fences.py",
        "    if writer.traits.is_derived or not writer.traits.keeps_every_row:\n",
        '    if writer.traits.lineage != "batch":\n',
        (f"{_WRITES}::test_two_pipelines_that_share_a_target_see_each_other",),
    ),
    Mutant(
        "a batch that waits for its target holds what another one needs",
        "batch/publishing/fences.py",
        "        writer.tables[-1].lock(cursor)\n    for table in writer.tables:\n"
        "        table.lock_definition(cursor)\n",
        "        pass\n    for table in writer.tables:\n        table.lock_definition(cursor)\n"
        "    writer.tables[-1].lock(cursor)\n",
        (f"{_WRITES}::test_two_first_batches_into_one_target_wait_for_each_other",),
    ),
    Mutant(
        "a replay takes back rows of every batch",
        "sinks/tables/lineage_table.py",
        'by_batch = sql.SQL("t.batch_id = any({}::bigint[])")',
        'by_batch = sql.SQL("{}::bigint[] is not null")',
        (f"{_REPLAY}::test_rows_of_another_pipeline_in_the_same_target_stay",),
    ),
    Mutant(
        "what is published is not covered",
        "batch/publishing/publish.py",
        "        ledger.coverage.add(batch)\n",
        "",
        (f"{_REPLAY}::test_only_range_changes_and_coverage_shows_both_batches",),
    ),
    Mutant(
        "a topic that was created again is taken for the old one",
        "batch/publishing/fences.py",
        "        if not may_be_same(range_.topic, range_.topic_id, topic_ids[range_.topic]):\n",
        "        if False:\n",
        (f"{_BATCH}::test_topic_created_again_while_it_is_read_gives_no_rows",),
    ),
    Mutant(
        "a plan does not compare known records",
        "planning/freeze_advance.py",
        "        check_records(broker, known, worth_comparing(stored, partitions))\n",
        "        pass\n",
        (
            f"{_FINGERPRINTS}::test_a_topic_that_is_created_again_is_noticed",
            f"{_FINGERPRINTS}::test_restored_disks_with_the_same_epochs_are_noticed",
        ),
    ),
    Mutant(
        "a replay does not compare known records",
        "planning/situation.py",
        "    check_records(broker, known, processed(stored, partitions))\n",
        "    pass\n",
        (f"{_FINGERPRINTS}::test_a_topic_that_is_created_again_is_noticed",),
    ),
    Mutant(
        "a plan of many tables does not compare known records",
        "planning/plan_tables.py",
        "            return denied.union(topic for topic, _ in compared.errors)\n",
        "            return denied\n",
        (f"{_FINGERPRINTS}::test_of_many_tables_only_the_one_of_another_topic_fails",),
    ),
    Mutant(
        "a batch does not compare known records after it has read",
        "batch/job.py",
        "    check_known_ranges(broker, launch.ranges, launch.known)\n    return",
        "    return",
        (f"{_FINGERPRINTS}::test_a_topic_that_is_created_again_while_it_is_read_is_noticed",),
    ),
    Mutant(
        "a range does not compare known records before it commits",
        "batch/by_partition/partition_commit.py",
        "        check_known_ranges(broker, [task.range], task.known)\n",
        "        pass\n",
        (f"{_FINGERPRINTS}::test_a_topic_that_is_created_again_while_it_is_read_is_noticed",),
    ),
    Mutant(
        "a batch keeps no record",
        "batch/publishing/publish.py",
        "                ledger.fingerprints.add(pipeline.name, fingerprints)\n",
        "                pass\n",
        (f"{_FINGERPRINTS}::test_markers_and_aborted_records_are_stepped_over",),
    ),
    Mutant(
        "the first plan of a topic without ID keeps no record",
        "planning/freeze_advance.py",
        "            ledger.fingerprints.add(pipeline.name, observed.first)\n",
        "            pass\n",
        (f"{_FINGERPRINTS}::test_a_topic_that_is_created_again_while_it_is_read_is_noticed",),
    ),
    Mutant(
        "any record at the offset of a known one is taken for it",
        "kafka/record_digests.py",
        "(equal if found.digest == each.digest else changed)[partition] = each",
        "equal[partition] = each",
        (
            f"{_FINGERPRINTS}::test_a_topic_that_is_created_again_is_noticed",
            f"{_FINGERPRINTS}::test_restored_disks_with_the_same_epochs_are_noticed",
        ),
    ),
    Mutant(
        "the record after a removed one is taken for another one at its offset",
        "kafka/record_digests.py",
        "            if found is None or found.offset != each.offset:\n",
        "            if found is None:\n",
        (f"{_FINGERPRINTS}::test_records_that_compaction_has_removed_say_nothing",),
    ),
    Mutant(
        "a record past the end of a range is kept for it",
        "kafka/record_digests.py",
        "            if known is not None and known.offset < range_.until_offset:\n",
        "            if known is not None:\n",
        (f"{_FINGERPRINTS}::test_a_record_past_the_range_is_not_kept",),
    ),
    Mutant(
        "older records of another log are not compared",
        "kafka/record_digests.py",
        "changed_record(partition, fingerprint, same_before.get(partition))",
        "changed_record(partition, fingerprint, None)",
        (f"{_FINGERPRINTS}::test_restored_disks_with_the_same_epochs_are_noticed",),
    ),
    Mutant(
        "all fingerprints are kept",
        "ledger/queries/fingerprints.sql",
        "  and t.is_superfluous;\n",
        "  and false;\n",
        (f"{_FINGERPRINTS}::test_at_most_eight_fingerprints_remain_at_growing_distances",),
    ),
    Mutant(
        "a topic that is known by its name is another one when brokers send its ID",
        "kafka/identity.py",
        "    return known == now or is_named(topic, known)\n",
        "    return known == now\n",
        (f"{_FINGERPRINTS}::test_a_topic_is_still_known_when_brokers_begin_to_send_ids",),
    ),
    Mutant(
        "code of a target writes rows of other pipelines when a batch is published",
        "ledger/ledger.py",
        "        bind_transaction(connection, pipeline)\n",
        "",
        (f"{_RIGHTS}::test_code_of_a_targets_owner_reaches_no_other_pipeline[trigger]",),
    ),
    Mutant(
        "code of a target writes rows of other pipelines when a range is committed",
        "batch/by_partition/range_copy.py",
        "        bind_transaction(cursor.connection, task.pipeline)\n",
        "",
        (f"{_RIGHTS}::test_nor_does_it_where_executors_copy_into_the_target",),
    ),
    Mutant(
        "code of a target writes rows of other pipelines when a partition is staged",
        "batch/staging/stage_partition.py",
        "        bind_transaction(connection, task.pipeline)\n",
        "",
        (f"{_RIGHTS}::test_nor_does_it_where_executors_copy_into_the_target",),
    ),
    Mutant(
        "a bound transaction writes rows of any pipeline",
        "ledger/migrations/0021_rights.sql",
        "from unnest(names) name where name <> bound limit 1;",
        "from unnest(names) name where false limit 1;",
        (f"{_RIGHTS}::test_code_of_a_targets_owner_reaches_no_other_pipeline[trigger]",),
    ),
    Mutant(
        "a transaction is bound again to another pipeline",
        "ledger/migrations/0021_rights.sql",
        "    elsif bound <> bind_transaction.pipeline then\n",
        "    elsif bound <> bind_transaction.pipeline then\n"
        "        update exactbatch.bound_transaction b set pipeline = bind_transaction.pipeline\n"
        "        where b.xid = pg_current_xact_id() and b.begun_at = now();\n        return;\n",
        (f"{_RIGHTS}::test_code_of_a_targets_owner_reaches_no_other_pipeline[trigger]",),
    ),
    Mutant(
        "a login for some pipelines writes all",
        "ledger/migrations/0021_rights.sql",
        "    where exists (select from exactbatch.login_pipeline l where l.login = session_user)\n",
        "    where false\n",
        (f"{_RIGHTS}::test_a_login_for_some_pipelines_writes_no_row_of_others",),
    ),
    Mutant(
        "a login without rights holds a lock of the ledger",
        "sinks/tables/target.py",
        '"select exactbatch.take_lock(%s)", (".".join(self.name),)',
        '"select pg_advisory_xact_lock(hashtextextended(%s, 0))", (".".join(self.name),)',
        (f"{_RIGHTS}::test_a_login_without_rights_holds_up_no_batch_and_one_that_does_is_named",),
    ),
    Mutant(
        "tables of live launches are dropped",
        "batch/staging/staging_tables.py",
        "        except psycopg2.errors.LockNotAvailable:\n            return True\n",
        "        except psycopg2.errors.LockNotAvailable:\n            return False\n",
        (f"{_BATCH}::test_leftovers_of_dead_launch_are_dropped_and_those_of_live_one_never",),
    ),
    Mutant(
        "a launch is no transaction that stays open",
        "batch/staging/staging_tables.py",
        '            cursor.execute("set local idle_in_transaction_session_timeout to 0")\n',
        "            lock_connection.commit()\n",
        (f"{_SETTINGS}::test_launch_holds_up_no_vacuum_and_is_not_ended_while_it_says_nothing",),
    ),
    Mutant(
        "a transaction of the driver does not have its settings",
        "postgres/connection.py",
        "            super().execute(connection.pins)",
        "            pass",
        (f"{_SETTINGS}::test_function_that_changes_session_changes_one_transaction[connect]",),
    ),
    Mutant(
        "a statement of the program finds what is on the login's path",
        "postgres/connection.py",
        "            path = connection.target_path if isinstance(query, sql.Composable) else OWN_PATH\n",
        "            path = connection.target_path\n",
        (f"{_SETTINGS}::test_after_an_error_each_statement_still_has_its_path",),
    ),
    Mutant(
        "an error takes the path back, and nobody notices",
        "postgres/connection.py",
        "                    connection._path = OWN_PATH\n",
        "                    pass\n",
        (f"{_SETTINGS}::test_after_an_error_each_statement_still_has_its_path",),
    ),
    Mutant(
        "statements over targets search a schema in which others may create",
        "postgres/session_settings.py",
        "               filter (where other.name is null),\n",
        "               ,\n",
        (f"{_SETTINGS}::test_a_schema_in_which_another_login_may_create_is_not_searched[everybody]",),
    ),
    Mutant(
        "a task reads the columns of all tables as it connects",
        "postgres/arrow.py",
        "db_kwargs=_BUILT_IN_TYPES",
        "db_kwargs={}",
        (
            "tests/integration/test_connection_settings.py::"
            "test_tasks_and_auditors_connect_without_reading_the_columns_of_all_tables",
        ),
    ),
    Mutant(
        "a transaction of a task does not have its settings",
        "postgres/arrow.py",
        "            statement.execute_update()",
        "            pass",
        (f"{_SETTINGS}::test_function_that_changes_session_changes_one_transaction[connect_arrow]",),
    ),
    Mutant(
        "nobody asks what the server has made of the settings",
        "postgres/session_settings.py",
        "            if (actual := self.values.get(setting.name)) != setting.value:\n",
        "            if (actual := self.values.get(setting.name)) != setting.value and False:\n",
        ("tests/integration/test_settings_matrix.py::test_a_database_that_is_not_utf_8_is_refused[LATIN1]",),
    ),
    Mutant(
        "a transform sees the time of the machine that it is on",
        "batch/spark/spark_session.py",
        "        spark.sparkContext.environment.update(variables)\n",
        "",
        ("tests/integration/test_transform.py::test_a_transform_gives_the_same_rows_in_every_time_zone",),
    ),
    Mutant(
        "rejects that the ledger swallows are not missed",
        "batch/publishing/publish.py",
        "    if (rows, rejected) != expected:\n",
        "    if False:\n",
        (f"{_BATCH}::test_a_trigger_that_swallows_rejects_fails_the_batch",),
    ),
    Mutant(
        "a unique index that treats different keys as equal by its collation is taken",
        "sinks/tables/target_checks.py",
        "and (not coalesce(n.collisdeterministic, true) or o.oid",
        "and (o.oid",
        (f"{_WRITES}::test_a_unique_index_that_could_hold_different_keys_to_be_equal_is_refused",),
    ),
    Mutant(
        "a unique index that treats different keys as equal by its operator class is taken",
        "sinks/tables/target_checks.py",
        "or o.oid is distinct from d.oid and not (",
        "or false and not (",
        (f"{_WRITES}::test_a_unique_index_that_could_hold_different_keys_to_be_equal_is_refused",),
    ),
    Mutant(
        "a unique index that treats different keys as equal by its condition, which is always true, is taken",
        "sinks/tables/target_checks.py",
        "and (i.indpred is null or i.indpred::text not like '%%{VAR %%')",
        "and i.indpred is null",
        (f"{_WRITES}::test_a_unique_index_that_could_hold_different_keys_to_be_equal_is_refused",),
    ),
    Mutant(
        "an earlier change that the target cannot hold any more is cut off",
        "sinks/upsert/latest_changes.py",
        "        if not (rules := kept_rules(kept, casts)):\n",
        "        if kept or not (rules := kept_rules(kept, casts)):\n",
        (
            "tests/integration/test_latest_changes.py"
            "::test_an_earlier_change_that_the_target_cannot_hold_any_more_is_refused",
        ),
    ),
    Mutant(
        "kept values of the same type, but for its length, are taken to fit",
        "sinks/values/kept_values.py",
        "    if kept.sql_name == target.sql_name or",
        "    if kept.leaf.name == target.leaf.name or",
        (
            "tests/integration/test_latest_changes.py"
            "::test_an_earlier_change_that_the_target_cannot_hold_any_more_is_refused",
        ),
    ),
    Mutant(
        "the audit casts a change as the target does, and finds no difference",
        "sinks/upsert/audit.py",
        '        also_wrong=sql.SQL("m.{}").format(_LOST) if losses else None,\n',
        "",
        (
            "tests/integration/test_latest_changes.py"
            "::test_the_audit_finds_a_row_whose_value_the_cast_has_changed",
        ),
    ),
    Mutant(
        "the watermark takes any event time of a partition, and not the greatest",
        "sinks/aggregate/watermark.py",
        "w.event_time desc limit 1) next",
        "w.event_time limit 1) next",
        (
            "tests/integration/test_growth.py::test_the_watermark_reads_one_row_for_each_of_its_own_partitions",
        ),
    ),
    Mutant(
        "a result of partial results is rounded in a narrower target",
        "sinks/aggregate/merged_groups.py",
        "            (merged, rules),\n",
        "            (merged, rules[:0]),\n",
        (f"{_WRITES}::test_a_result_that_the_target_cannot_hold_any_more_is_refused",),
    ),
    Mutant(
        "a group without partial results is rounded to another one, which loses its row",
        "sinks/aggregate/merged_groups.py",
        "[rule for rule in rules if rule.column in groups]",
        "[]",
        (f"{_WRITES}::test_a_result_that_the_target_cannot_hold_any_more_is_refused",),
    ),
    Mutant(
        "the audit rounds a result of partial results as a narrower target does",
        "sinks/aggregate/audit.py",
        '    wrong: list[sql.Composable] = [sql.SQL("m.{}").format(_LOST)] if losses else []\n',
        "    wrong: list[sql.Composable] = []\n",
        (f"{_WRITES}::test_a_result_that_the_target_cannot_hold_any_more_is_refused",),
    ),
    Mutant(
        "a sum that depends on the order of its parts is added to",
        "sinks/aggregate/function_sql.py",
        'type_ != ("double precision" if isinstance(function, Sum) else "text")\n',
        'type_ != ("" if isinstance(function, Sum) else "text")\n',
        (f"{_AGGREGATE}::test_a_sum_that_depends_on_the_order_of_batches_is_never_added",),
    ),
    Mutant(
        "of equal numbers with different scales, any is the greatest",
        "sinks/aggregate/function_sql.py",
        'sql.SQL("greatest"), sql.SQL(">=")',
        'sql.SQL("greatest"), sql.SQL("<=")',
        (f"{_AGGREGATE}::test_results_that_are_added_are_those_of_merging_all_to_the_last_byte",),
    ),
    Mutant(
        "results are added to rows of which a replay has retracted a part",
        "sinks/aggregate/added_results.py",
        '        cursor.execute(sql.SQL("select not exists (select from {})").format(affected))\n',
        '        cursor.execute("select true")\n',
        (f"{_AGGREGATE}::test_replay_of_part_takes_whole_batches_and_gives_same",),
    ),
    Mutant(
        "results are added to a row that somebody has deleted",
        "sinks/aggregate/added_results.py",
        "        if (done.inserted, done.updated) != (0, rows):\n",
        "        if False:\n",
        (f"{_AGGREGATE}::test_a_group_whose_row_was_deleted_is_merged_from_all_partial_results",),
    ),
    Mutant(
        "results are added in the types of a target that may round them",
        "sinks/aggregate/added_results.py",
        "            or [cast.target for cast in in_target] != [cast.target for cast in in_partials]\n",
        "",
        (f"{_WRITES}::test_nothing_is_added_to_a_result_that_a_narrower_target_has_rounded",),
    ),
    Mutant(
        "results are added to groups by values that may look different",
        "sinks/aggregate/added_results.py",
        "            or not all(has_one_image(cast.type) for cast in in_target[: len(partials.sink.groups)])\n",
        "",
        (f"{_AGGREGATE}::test_where_equal_values_may_look_different_all_results_are_merged",),
    ),
    Mutant(
        "a batch looks for the earlier results of its groups without the index",
        "sinks/aggregate/partial_results.py",
        '"where {hash_of_earlier} >= {hash_of_result} order by {hash_of_earlier} limit 1) "',
        '"where {hash_of_earlier} = {hash_of_result} limit 1) "',
        ("tests/integration/test_growth.py::test_a_batch_of_an_aggregate_costs_what_it_changes",),
    ),
    Mutant(
        "a name that Postgres cuts is a name",
        "sinks/table_name.py",
        "            if (size := len(part.encode())) > MAX_NAME_BYTES:\n",
        "            if (size := len(part.encode())) < 0:\n",
        ("tests/unit/test_sinks.py::test_a_name_that_postgres_would_cut_is_refused",),
    ),
    Mutant(
        "a replay drops more partitions than a transaction can lock",
        "sinks/by_batch/layout.py",
        "        partitions = partitions[:MOST_DROPPED]\n",
        "",
        (
            "tests/integration/test_by_batch.py"
            "::test_a_replay_drops_as_many_partitions_as_a_transaction_can_lock",
        ),
    ),
    Mutant(
        "a merge waits for readers of a referenced table while it holds the target",
        "sinks/by_batch/partitions.py",
        "            is_changed = change()\n",
        "            cursor.execute(\"select set_config('lock_timeout', %s, true)\", (own_timeout,))\n"
        "            is_changed = change()\n",
        ("tests/integration/test_merge.py::test_a_reader_of_what_the_target_refers_to_keeps_the_partitions",),
    ),
    Mutant(
        "a merged partition refers to single partitions of another table",
        "sinks/by_batch/merge.py",
        " and conparentid = 0 order by",
        " order by",
        ("tests/integration/test_merge.py::test_indexes_constraints_and_defaults_remain",),
    ),
    Mutant(
        "partial results are rounded in a narrower table",
        "sinks/aggregate/partial_results.py",
        "evolve=evolve, exact=True)",
        "evolve=evolve)",
        (f"{_WRITES}::test_partial_results_that_would_be_rounded_or_grouped_otherwise_are_refused",),
    ),
    Mutant(
        "partial results are grouped by a collation that makes texts equal",
        "sinks/aggregate/partial_results.py",
        "        check_collations(cursor, self.table.table, self.sink.group_columns)\n",
        "",
        (f"{_WRITES}::test_partial_results_that_would_be_rounded_or_grouped_otherwise_are_refused",),
    ),
    Mutant(
        "an upsert does not delete",
        "sinks/upsert/latest_changes.py",
        "on commit drop as select {key} from {staged} where deleted ",
        "on commit drop as select {key} from {staged} where false ",
        ("tests/integration/test_upsert.py::test_a_null_value_deletes_the_row_of_its_key",),
    ),
    Mutant(
        "a key whose changes are all retracted keeps its row",
        "sinks/upsert/latest_changes.py",
        '"where not exists (select from {staged} l where {same_key}) "',
        '"where false and not exists (select from {staged} l where {same_key}) "',
        (
            "tests/integration/test_upsert.py::test_rows_under_wrong_keys_and_wrong_deletes_are_gone_after_replay",
        ),
    ),
    Mutant(
        "the latest staged change counts, although an earlier batch left a later one",
        "sinks/upsert/latest_changes.py",
        "        kept = self._keep_latest(cursor) if has_earlier else 0\n",
        "        kept = 0\n",
        ("tests/integration/test_upsert.py::test_late_and_repeated_changes_do_not_overwrite_newer_ones",),
    ),
    Mutant(
        "an earlier delete that is the latest change again leaves the row",
        "sinks/upsert/latest_changes.py",
        "union all select {key} from {kept} where deleted ",
        "union all select {key} from {kept} where false ",
        ("tests/integration/test_latest_changes.py::test_an_earlier_delete_that_is_the_latest_change_again",),
    ),
    Mutant(
        "new rows are missing where the target has a row of one of their keys",
        "sinks/upsert/moving_values.py",
        "            return self._write_in_another_order(cursor, error)\n",
        "            return 0\n",
        (
            "tests/integration/test_latest_changes.py"
            "::test_rows_that_the_target_has_before_their_first_change_are_updated",
        ),
    ),
    Mutant(
        "rows are written in the order of their keys, whatever they take over",
        "sinks/upsert/moving_values.py",
        '"order by c.{place} nulls last, {of_changing} on',
        '"order by {of_changing} on',
        (f"{_MOVING}::test_values_move_between_the_rows_of_a_batch",),
    ),
    Mutant(
        "of rows that exchange values, none is removed",
        "sinks/upsert/moving_values.py",
        "removal=self._removal if removed else None",
        "removal=None",
        (f"{_MOVING}::test_values_move_between_the_rows_of_a_batch",),
    ),
    Mutant(
        "rows that exchange values lose what the pipeline does not write",
        "sinks/upsert/moving_values.py",
        "kept = [name for name in self.target.columns(cursor) if",
        "kept = [name for name in () if",
        (f"{_MOVING}::test_columns_that_the_pipeline_does_not_write_keep_their_values",),
    ),
    Mutant(
        "rows that exchange values are deleted although a foreign key takes children along",
        "sinks/upsert/moving_values.py",
        "        if effects := self.target.row_changers(cursor):\n",
        "        if False and (effects := self.target.row_changers(cursor)):\n",
        (f"{_MOVING}::test_rows_that_other_rows_reference",),
    ),
    Mutant(
        "a change that is older than its row takes part in an exchange",
        "sinks/upsert/moving_values.py",
        '"join {rows} l on {same_key} where {changes} order by',
        '"join {rows} l on {same_key} where true or {changes} order by',
        (f"{_MOVING}::test_a_change_that_is_older_than_its_row_takes_no_part",),
    ),
    Mutant(
        "a schema that another session creates first is an error",
        "postgres/creation.py",
        "    _until_not_overtaken(cursor, create)\n",
        "    create()\n",
        (f"{_CREATED}::test_a_schema_that_another_session_creates",),
    ),
    Mutant(
        "a table that another session creates first is an error",
        "postgres/creation.py",
        "    _until_not_overtaken(cursor, lambda: cursor.execute(statement))\n",
        "    cursor.execute(statement)\n",
        (f"{_CREATED}::test_a_table_that_another_session_creates",),
    ),
    Mutant(
        "two registrations at the same time do not see each other",
        "ledger/registry.py",
        "        _QUERIES.lock_registrations(self._connection)\n",
        "",
        (f"{_CREATED}::test_of_two_registrations_at_the_same_time_the_second_is_checked_against_the_first",),
    ),
    Mutant(
        "two pipelines create the index of their changes at the same time",
        "sinks/upsert/change_index.py",
        "\"select exactbatch.try_lock('index of ' || %s)\"",
        "\"select %s <> ''\"",
        (f"{_CREATED}::test_two_pipelines_write_their_first_changes_at_the_same_time",),
    ),
    Mutant(
        "an object that another session creates first is an error for good",
        "errors/sqlstates.py",
        "    elif sqlstate == UNIQUE_VIOLATION and is_of_catalog(message):\n",
        "    elif False:\n",
        (f"{_CREATED}::test_an_object_that_another_session_creates_is_a_retryable_error",),
    ),
    Mutant(
        "an earlier change in another partition is not noticed",
        "sinks/upsert/latest_changes.py",
        '"((c.kafka_topic, c.kafka_partition) <> (affected.kafka_topic, affected.kafka_partition) "',
        '"(false "',
        (
            "tests/integration/test_latest_changes.py"
            "::test_a_key_on_two_partitions_is_refused_whichever_batches_its_changes_are_in",
        ),
    ),
    Mutant(
        "only the first of several versions finds earlier changes that are later",
        "sinks/upsert/change_order.py",
        "    for name in reversed(version):\n",
        "    for name in version[:1]:\n",
        (
            "tests/integration/test_latest_changes.py::test_of_several_versions_the_first_that_differs_decides",
        ),
    ),
    Mutant(
        "several versions are registered like one",
        "sinks/upsert/spec.py",
        "        version = versions[0] if len(versions) == 1 else ",
        "        version = versions[0] if len(versions) else ",
        ("tests/unit/test_sinks.py::test_the_ledger_registers_one_version_by_its_name_and_several_quoted",),
    ),
    Mutant(
        "without a history, an older change replaces a later row",
        "sinks/upsert/latest_rows.py",
        '"do update set {} where {}"',
        '"do update set {} where true or {}"',
        (
            "tests/integration/test_without_history.py::test_the_greatest_version_is_the_latest_and_then_the_greatest_offset",
        ),
    ),
    Mutant(
        "a late change brings a deleted row back",
        "sinks/upsert/latest_only.py",
        '"delete from {staged} l using {markers} t where {same_key}"',
        '"delete from {staged} l using {markers} t where {same_key} and false"',
        (
            "tests/integration/test_without_history.py"
            "::test_a_marker_keeps_a_late_change_from_bringing_the_row_back_until_it_is_dropped",
        ),
    ),
    Mutant(
        "the markers of folded batches are forgotten",
        "ledger/ledger.py",
        "    tables = [writer.lineage_table, *([writer.markers] if isinstance(writer, KeepsLatest) else [])]\n",
        "    tables = [writer.lineage_table]\n",
        ("tests/integration/test_prune.py::test_markers_of_folded_batches_are_replaced_and_compacted",),
    ),
    Mutant(
        "a replayed record that gives its key no more lets an older change replace its row",
        "sinks/upsert/latest_only.py",
        ' and {same_key}))"\n        ).format(\n',
        ' or true))"\n        ).format(\n',
        (
            "tests/integration/test_without_history.py::test_an_older_change_does_not_replace_a_row_whose_record_gives_it_no_more",
        ),
    ),
    Mutant(
        "without a history, a change that does not arrive is not noticed",
        "sinks/upsert/latest_rows.py",
        "        if missing or older or altered or written not in (None, found):\n",
        "        if False:\n",
        ("tests/integration/test_without_history.py::test_a_trigger_that_alters_or_drops_rows_is_noticed",),
    ),
    Mutant(
        "rows that were just written are not looked at when another one is refused",
        "sinks/upsert/latest_rows.py",
        '"where t.tableoid is null or {is_written} or {replaces}"',
        '"where t.tableoid is null or {replaces}"',
        (f"{_REFUSED}::test_the_key_of_a_refused_change_keeps_what_older_changes_gave_it",),
    ),
    Mutant(
        "without a history, a trigger of the target may change markers",
        "sinks/upsert/writer.py",
        "        with forbid_changes(cursor, self._companion.table, while_writing=self._target):\n",
        "        if True:\n",
        (
            "tests/integration/test_without_history.py::test_a_trigger_of_the_target_that_changes_markers_is_noticed",
        ),
    ),
    Mutant(
        "without a history, a replay is taken for an advance",
        "sinks/upsert/without_history.py",
        "            is_replay=bool(staged.replaced),\n",
        "            is_replay=False,\n",
        (
            "tests/integration/test_without_history.py::test_a_replay_applies_its_records_again_and_retracts_nothing",
        ),
    ),
    Mutant(
        "a value that was left out is null in the row",
        "sinks/upsert/latest_changes.py",
        "        self.unavailable_values.resolve(\n            cursor,\n            self.staged,\n"
        "            self.columns,\n            _KEPT,\n",
        "        dict(\n",
        (
            "tests/integration/test_unavailable_values.py::test_a_value_that_was_left_out_is_that_of_the_newest_older_change_that_has_it",
        ),
    ),
    Mutant(
        "results of a table with a column r have that column alone",
        "batch/publishing/outbox.py",
        "row=ROW",
        'row=sql.SQL("r")',
        ("tests/integration/test_column_names.py::test_append",),
    ),
    Mutant(
        "the audit takes a column rank for the rank of a change",
        "sinks/upsert/audit.py",
        'sql.Identifier("exactbatch rank")',
        'sql.Identifier("rank")',
        ("tests/integration/test_column_names.py::test_upsert",),
    ),
    Mutant(
        "the audit takes a column writer for the pipeline that wrote a row",
        "audit/latest_comparison.py",
        'sql.Identifier("exactbatch writer")',
        'sql.Identifier("writer")',
        ("tests/integration/test_column_names.py::test_upsert",),
    ),
    Mutant(
        "a check that raises for a rejected record ends the audit",
        "audit/latest_values.py",
        '"and {not_rejected} offset 0) e where {unstorable} union all "',
        '"and {not_rejected}) e where {unstorable} union all "',
        ("tests/integration/test_column_names.py::test_upsert",),
    ),
    Mutant(
        "a row gets a value from before it was deleted",
        "sinks/upsert/unavailable_values.py",
        "over (partition by {key}, {epoch}, {life} ",
        "over (partition by {key}, {epoch} ",
        (
            "tests/integration/test_unavailable_values.py::test_the_value_of_a_deleted_row_is_not_that_of_the_next_row_of_its_key",
        ),
    ),
    Mutant(
        "a reject gives its values to other changes",
        "batch/staging/reread.py",
        "        if cursor.rowcount in (0, limit + 1):\n",
        "        if True:\n",
        ("tests/integration/test_unavailable_values.py::test_a_reject_gives_its_values_to_no_other_change",),
    ),
    Mutant(
        "what a replay retracts still gives values",
        "sinks/upsert/unavailable_values.py",
        "where not {is_replaced} union all ",
        "where true or {is_replaced} union all ",
        (
            "tests/integration/test_unavailable_values.py"
            "::test_a_replay_that_retracts_the_only_older_change_is_refused_unless_it_includes_the_later_one",
        ),
    ),
    Mutant(
        "a row gets a value from before a truncate",
        "sinks/upsert/unavailable_values.py",
        "over (partition by {key}, {epoch}, {life} ",
        "over (partition by {key}, {life} ",
        (f"{_TRUNCATES}::test_a_value_from_before_a_truncate_is_not_known",),
    ),
    Mutant(
        "a replay brings a value from before a truncate",
        "sinks/upsert/unavailable_values.py",
        "            if newest_truncate is not None\n            else",
        "            if False\n            else",
        (
            f"{_UNAVAILABLE}"
            "::test_a_replay_that_retracts_the_insert_after_a_truncate_brings_no_value_from_before_the_truncate",
        ),
    ),
    Mutant(
        "a retracted truncate brings a value from before an older one",
        "sinks/upsert/truncates.py",
        '"insert into {affected} select {key} from {change} c "\n',
        '"insert into {affected} select {key}, true from {change} c "\n',
        (
            f"{_UNAVAILABLE}"
            "::test_a_replay_that_retracts_a_truncate_brings_no_value_from_before_an_older_truncate",
        ),
    ),
    Mutant(
        "a late truncate takes the value that a late delete has left",
        "sinks/upsert/truncates.py",
        "({key}, {by_truncate}) select {key}, true from",
        "({key}, {by_truncate}) select {key}, null from",
        (f"{_UNAVAILABLE}::test_a_late_truncate_leaves_a_row_the_value_that_a_late_delete_has_left_it",),
    ),
    Mutant(
        "a column of lineage may change what is written",
        "sinks/tables/target_checks.py",
        "        if not (is_comparable and cast.holds_lineage):\n",
        "        if not is_comparable:\n",
        (f"{_KINDS}::test_lineage_that_a_column_may_change_is_refused_until_the_statement_of_the_message",),
    ),
    Mutant(
        "offsets are stored in a type that replays cannot search",
        "sinks/tables/target_checks.py",
        "        if not (is_comparable and cast.holds_lineage):\n",
        "        if not cast.holds_lineage:\n",
        (f"{_KINDS}::test_lineage_that_a_column_may_change_is_refused_until_the_statement_of_the_message",),
    ),
    Mutant(
        "a text that is longer than its type is taken for a value of it",
        "ledger/migrations/0022_older_servers.sql",
        "        type, modifier\n",
        "        type, -1\n",
        (f"{_VERSIONS}::test_a_text_is_refused_exactly_if_its_type_refuses_it_and_with_the_same_message",),
    ),
    Mutant(
        "a text with quotes is not checked as it is",
        "ledger/migrations/0022_older_servers.sql",
        "(pg_catalog.replace(value, '\\', '\\\\'), '\"', '\\\"')",
        "(pg_catalog.replace(value, '\\', '\\\\'), '\"', '')",
        (f"{_VERSIONS}::test_a_text_is_refused_exactly_if_its_type_refuses_it_and_with_the_same_message",),
    ),
    Mutant(
        "a full disk is taken for a value that its type refuses",
        "ledger/migrations/0022_older_servers.sql",
        "'^(08|25|40|53|57",
        "'^(08|25|40|57",
        (f"{_VERSIONS}::test_an_error_of_the_server_is_not_taken_for_one_of_a_value",),
    ),
    Mutant(
        "without nulls not distinct, a group of an empty array is that of null",
        "sinks/aggregate/group_key.py",
        '            yield sql.SQL("({} is null)").format(name)\n',
        "",
        (f"{_VERSIONS}::test_a_target_has_one_row_for_each_group_also_where_values_are_null",),
    ),
    Mutant(
        "without nulls not distinct, groups of null have several rows",
        "sinks/aggregate/group_key.py",
        '"(array[{}])"',
        '"({})"',
        (f"{_VERSIONS}::test_a_target_has_one_row_for_each_group_also_where_values_are_null",),
    ),
    Mutant(
        "a driver takes a server that is too old",
        "postgres/connection.py",
        "    check_version(version)\n",
        "",
        (f"{_VERSIONS}::test_a_server_that_is_too_old_is_refused_also_behind_a_pooler_that_drops_options",),
    ),
    Mutant(
        "executors take a server that is too old",
        "postgres/arrow.py",
        "        check_version(version)\n",
        "",
        (f"{_VERSIONS}::test_a_server_that_is_too_old_is_refused_also_behind_a_pooler_that_drops_options",),
    ),
    Mutant(
        "an old server that does not know a parameter is not refused by its version",
        "postgres/dsn.py",
        "    if version is not None and (old := too_old(version)) is not None:\n",
        "    if parameter is None and version is not None and (old := too_old(version)) is not None:\n",
        (f"{_VERSIONS}::test_an_old_server_is_refused_by_its_version_in_whatever_language_it_answers",),
    ),
    Mutant(
        "a parameter that the server does not know is retried",
        "postgres/session_settings.py",
        "    return None if found is None else found[1]\n",
        "    return None\n",
        (f"{_VERSIONS}::test_a_parameter_that_the_server_does_not_know_is_named",),
    ),
    Mutant(
        "a connection whose password comes from Azure is taken without one",
        "airflow/connections.py",
        '_CLOUD_PASSWORD: Final = {"azure_conn_id": "azure", ',
        "_CLOUD_PASSWORD: Final = {",
        ("tests/unit/test_connections.py",),
    ),
    Mutant(
        "a connection of Airflow may name any function",
        "airflow/connections.py",
        "    if provider is not None and provider not in OWN:\n",
        "    if False:\n",
        ("tests/unit/test_connections.py::test_a_connection_of_airflow_names_no_code",),
    ),
    Mutant(
        "a token is used until it has expired",
        "tokens/providers.py",
        "_RENEWED_AFTER: Final = 0.8\n",
        "_RENEWED_AFTER: Final = 1.0\n",
        ("tests/unit/test_tokens.py::test_a_token_is_kept_for_four_fifths_of_its_lifetime",),
    ),
    Mutant(
        "a token that was refused is sent again",
        "tokens/providers.py",
        "        _tokens.clear()\n",
        "        pass\n",
        ("tests/unit/test_tokens.py", "tests/integration/test_token_logins.py"),
    ),
    Mutant(
        "whoever answers for Postgres gets a token",
        "postgres/dsn.py",
        '    if mode != "verify-full" and not host',
        '    if mode == "disable" and not host',
        ("tests/unit/test_tokens.py::test_postgres_gets_a_token_only_where_nobody_else_can",),
    ),
    Mutant(
        "the secret of a client of tokens is sent in the open",
        "tokens/oidc.py",
        '    if url.scheme != "https" and not',
        '    if url.scheme not in ("http", "https") and not',
        ("tests/unit/test_tokens.py::test_oidc_properties_are_checked_before_a_secret_is_sent",),
    ),
    Mutant(
        "a refused token is a wrong configuration",
        "kafka/client_errors.py",
        '    if error.name() == "_AUTHENTICATION" and uses_tokens(properties):\n',
        "    if False:\n",
        ("tests/integration/test_token_logins.py::test_a_token_that_the_broker_refuses_is_the_tokens_fault",),
    ),
    Mutant(
        "a collation treats different topics as equal",
        "sinks/tables/target_checks.py",
        "    for name, collation in cursor.fetchall():\n",
        "    for name, collation in ():\n",
        (f"{_KINDS}::test_lineage_that_a_column_may_change_is_refused_until_the_statement_of_the_message",),
    ),
    Mutant(
        "an audit after a compaction forgets rejects",
        "audit/places.py",
        '"where b.is_whole and case when b.covered is null then 0 else b.rejected end <>',
        '"where b.is_whole and not b.is_compacted and case when b.covered is null then 0 else b.rejected end <>',
        (
            "tests/integration/test_compact.py"
            "::test_the_auditor_finds_rejects_that_are_gone_below_the_horizon",
        ),
    ),
    Mutant(
        "an audit after a compaction forgets an Append next to an Upsert",
        "audit/derived.py",
        "sql.Literal(isinstance(writer, Compacts))",
        "sql.Literal(True)",
        (
            "tests/integration/test_compact.py"
            "::test_the_auditor_counts_rows_of_an_append_next_to_an_upsert_below_the_horizon",
        ),
    ),
    Mutant(
        "a partition that is attached meanwhile may alter copied rows",
        "batch/by_partition/range_copy.py",
        "    check_copied_unaltered(task.pipeline.traits.target, facts)\n",
        "",
        (f"{_PARTITION}::test_a_partition_that_is_attached_meanwhile_with_a_trigger_takes_no_rows",),
    ),
    Mutant(
        "Arrow casts a long decimal of Avro from text",
        "formats/avro/decoder.py",
        "            if not pa.types.is_decimal(column.arrow_type):\n",
        "            if True:\n",
        (
            "tests/unit/test_avro.py"
            "::test_a_long_decimal_that_does_not_fit_a_narrow_column_is_a_reject_and_no_other_number",
        ),
    ),
    Mutant(
        "any schema with the logical type uuid is one",
        "formats/avro/parsed_schema.py",
        "    if _is_fixed_uuid(full):\n",
        '    if logical == "uuid":\n',
        ("tests/unit/test_avro.py::test_a_field_becomes_a_column",),
    ),
    Mutant(
        "the last of two versions of a referenced schema counts",
        "formats/registry/client.py",
        "        if (name := str(reference.name)) not in met:\n",
        "        if name := str(reference.name):\n",
        (
            "tests/unit/test_avro.py"
            "::test_of_two_versions_of_a_referenced_schema_the_first_counts_as_for_the_serializer",
            "tests/unit/test_protobuf.py"
            "::test_of_two_versions_of_an_imported_file_the_first_counts_as_for_the_serializer",
        ),
    ),
    Mutant(
        "a registry is asked for IDs that none has",
        "formats/registry/wire_format.py",
        "    if schema_id > MOST:\n",
        "    if False:\n",
        (f"{_REGISTRY}::test_bytes_that_are_no_id_of_a_schema_are_a_reject_and_the_registry_is_not_asked",),
    ),
    Mutant(
        "a header with a schema ID is ignored",
        "formats/registry/frames.py",
        "    if not spec.reads_schema_ids:\n",
        "    if True:\n",
        (f"{_HEADER_IDS}::test_a_bare_body_that_looks_like_a_prefix_is_what_its_header_says",),
    ),
    Mutant(
        "a prefix counts before a header",
        "formats/registry/schema_id_headers.py",
        "    prefixes = [headers.get(index) or _EMPTY for index in range(len(values))]\n",
        "    prefixes = [\n"
        '        _EMPTY if (values[index].as_py() or _EMPTY)[:1] == b"\\0" else headers.get(index) or _EMPTY\n'
        "        for index in range(len(values))\n"
        "    ]\n",
        (f"{_HEADER_IDS}::test_a_bare_body_that_looks_like_a_prefix_is_what_its_header_says",),
    ),
    Mutant(
        "the header of a key counts for the value",
        "formats/message/decoder.py",
        'framed(self.values.spec, "value", values, messages)',
        'framed(self.values.spec, "key", values, messages)',
        (f"{_HEADER_IDS}::test_headers_and_prefixes_in_one_topic",),
    ),
    Mutant(
        "the header of a value counts for the key next to it",
        "formats/message/decoder.py",
        'framed(self._key.spec, "key", ',
        'framed(self._key.spec, "value", ',
        (f"{_HEADER_IDS}::test_keys_have_a_header_of_their_own",),
    ),
    Mutant(
        "a tombstone deletes without a look at its key's header",
        "formats/upsert_changes.py",
        'framed(key.spec, "key", messages',
        'framed(None, "key", messages',
        (f"{_HEADER_IDS}::test_tombstones_delete_by_the_header_of_their_key",),
    ),
    Mutant(
        "the first of several headers counts",
        "formats/message/record_headers.py",
        "                    found[index] = value\n",
        "                    found.setdefault(index, value)\n",
        (f"{_HEADER_IDS}::test_headers_and_prefixes_in_one_topic",),
    ),
    Mutant(
        "a header with bytes left over is a prefix",
        "formats/registry/schema_id_headers.py",
        "            if end == len(header):\n",
        "            if end <= len(header):\n",
        (f"{_HEADER_IDS}::test_a_header_that_is_no_prefix_is_a_reject_that_names_it",),
    ),
    Mutant(
        "a null header is none",
        "formats/registry/schema_id_headers.py",
        "    reasons = {found: ",
        "    headers = {index: found for index, found in headers.items() if found is not None}\n    reasons = {found: ",
        (f"{_HEADER_IDS}::test_a_header_that_is_no_prefix_is_a_reject_that_names_it",),
    ),
    Mutant(
        "a value without a header may begin with a GUID",
        "formats/registry/schema_id_headers.py",
        "        if index not in headers:\n",
        "        if False:\n",
        (f"{_HEADER_IDS}::test_a_header_is_never_taken_for_a_prefix",),
    ),
    Mutant(
        "a record whose headers cannot be read is read by its prefix",
        "formats/registry/schema_id_headers.py",
        "    reasons = {found: ",
        "    headers = {index: found for index, found in headers.items() if found != ()}\n    reasons = {found: ",
        (f"{_HEADER_IDS}::test_a_record_whose_headers_cannot_be_read_is_a_reject",),
    ),
    Mutant(
        "AWS Glue's values may fill the memory",
        "formats/registry/frames.py",
        "        check_size(0, size)\n",
        "",
        (f"{_OTHER_REGISTRIES}::test_small_values_of_glue_cannot_fill_the_memory",),
    ),
    Mutant(
        "a value of Glue that ends early is read",
        "formats/registry/frames.py",
        "    if not stream.eof or stream.unused_data:\n",
        "    if False:\n",
        (f"{_OTHER_REGISTRIES}::test_another_frame_than_glues_is_a_reject_alone",),
    ),
    Mutant(
        "Glue's compression is ignored",
        "formats/registry/frames.py",
        "    if value.startswith(_ZLIB):\n",
        "    if False:\n",
        (f"{_OTHER_REGISTRIES}::test_glues_frames_become_confluents_by_guid",),
    ),
    Mutant(
        "an ID of Apicurio is asked for as another kind",
        "formats/registry/apicurio.py",
        "        ids = self._location.ids\n",
        '        ids = "contentId"\n',
        (f"{_OTHER_REGISTRIES}::test_the_ids_of_apicurio_are_of_the_kind_that_the_address_says",),
    ),
    Mutant(
        "a header with the other kind of Apicurio's IDs is ignored",
        "formats/registry/frames.py",
        "        if index in of_other:\n",
        "        if False:\n",
        (f"{_OTHER_REGISTRIES}::test_headers_of_apicurio_name_the_schemas_of_bare_values",),
    ),
    Mutant(
        "Avro as JSON of Apicurio is read as bytes",
        "formats/registry/frames.py",
        "        if encodings.get(index, _BINARY) != _BINARY:\n",
        "        if False:\n",
        (f"{_OTHER_REGISTRIES}::test_headers_of_apicurio_name_the_schemas_of_bare_values",),
    ),
    Mutant(
        "a registry that refuses a token gets no new one",
        "formats/registry/client.py",
        "            forget_tokens()\n",
        "",
        (f"{_OTHER_REGISTRIES}::test_a_registry_gets_the_token_of_a_provider_and_a_new_one_after_a_refusal",),
    ),
    Mutant(
        "a connection of Airflow names a function for the registry's tokens",
        "airflow/connections.py",
        "    _check_provider(connection, find_token_provider(properties), None)\n",
        "",
        (
            "tests/unit/test_connections.py::"
            "test_a_connection_names_no_function_of_its_own_for_tokens_of_the_registry",
        ),
    ),
    Mutant(
        "a GUID is asked for as if registries knew it by its number",
        "formats/registry/client.py",
        "            if isinstance(schema_id, UUID):\n                return",
        "            if False:\n                return",
        (f"{_HEADER_IDS}::test_headers_and_prefixes_in_one_topic",),
    ),
    Mutant(
        "the reader without objects finds the first header",
        "compiled/messages.py",
        "                if compared == HAS_HEADER and found[i] != NOT_ASCII:",
        "                if compared == HAS_HEADER and found[i] == NO_HEADER:",
        ("tests/integration/test_read.py::test_the_last_header_of_a_name_is_found_by_both_readers",),
    ),
    Mutant(
        "the reader without objects finds a header by the beginning of its name",
        "compiled/messages.py",
        "if is_name and at == len(name) else",
        "if is_name else",
        ("tests/integration/test_read.py::test_the_last_header_of_a_name_is_found_by_both_readers",),
    ),
    Mutant(
        "the reader without objects takes headers that cannot be read for none",
        "compiled/messages.py",
        "        if byte >= 128:\n            return NOT_ASCII\n",
        "",
        ("tests/integration/test_read.py::test_the_last_header_of_a_name_is_found_by_both_readers",),
    ),
    Mutant(
        "the auditor reads the bytes of a bare body as a prefix",
        "audit/log_records.py",
        "value.decode(values, records, keeps_unavailable=traits.keeps_unavailable)",
        "value.values.decode(values)",
        (f"{_HEADER_TOPICS}::test_the_bytes_of_an_id_in_a_bare_body_are_no_prefix",),
    ),
    Mutant(
        "the auditor does not know events without a row by their header",
        "audit/rowless.py",
        '            values = unframe(self._registry, "value", values, records).values\n',
        "            pass\n",
        (f"{_HEADER_TOPICS}::test_events_without_a_row_are_known_to_an_audit",),
    ),
    Mutant(
        "a schema of another type is parsed as Avro",
        "formats/registry/client.py",
        "        if (schema.schema_type or _AVRO) != _AVRO:\n",
        "        if False:\n",
        ("tests/unit/test_avro.py::test_a_reference_that_is_no_avro_schema_is_a_reject",),
    ),
    Mutant(
        "a value of Avro may be of any depth",
        "formats/avro/bodies.py",
        "    return _marked(schema, _recursive(schema), _Widths(schema))\n",
        "    return schema\n",
        ("tests/unit/test_avro_bounds.py::test_a_deep_record_is_a_reject_and_crashes_nothing",),
    ),
    Mutant(
        "of records of Avro that contain each other, only the outer one is found",
        "formats/avro/bodies.py",
        "        if reached <= index:\n",
        "        if reached == index:\n",
        ("tests/unit/test_avro_bounds.py::test_a_record_may_be_in_two_circles",),
    ),
    Mutant(
        "a schema of Avro that nests too deep ends a batch",
        "formats/avro/decoder.py",
        "    except RecursionError:\n",
        "    except ZeroDivisionError:\n",
        ("tests/unit/test_avro.py::test_bodies_of_a_schema_that_nests_deep_are_rejects",),
    ),
    Mutant(
        "numbers of Avro do not become text for a numeric that Postgres reads",
        "formats/avro/decoder.py",
        "            written = map(_as_text, values) if is_text and field.is_exact_number else values\n",
        "            written = values\n",
        (
            "tests/unit/test_avro.py::test_a_decimal_fits_a_numeric_of_any_or_no_precision",
            "tests/unit/test_avro.py::test_an_integer_fits_a_numeric",
        ),
    ),
    Mutant(
        "each value with an unknown ID is a request",
        "formats/registry/client.py",
        "        if self._lacking.get(wanted, now) > now:\n",
        "        if False:\n",
        (f"{_REGISTRY}::test_an_unknown_id_is_asked_for_once_in_a_while_and_may_be_registered_later",),
    ),
    Mutant(
        "a block asks a registry for any number of unknown IDs",
        "formats/registry/schemas.py",
        "        if len(self._lacking) >= _MOST_LACKING:\n",
        "        if False:\n",
        (f"{_REGISTRY}::test_a_block_asks_in_vain_for_20_ids_and_first_for_those_of_most_records",),
    ),
    Mutant(
        "a password goes to a registry over http",
        "formats/registry/registry_properties.py",
        '    return parts.scheme == "http" and ',
        '    return parts.scheme == "gopher" and ',
        (f"{_REGISTRY}::test_a_password_is_sent_over_http_to_this_machine_alone",),
    ),
    Mutant(
        "an infinity, which Arrow takes, is refused",
        "formats/json/refused_objects.py",
        'rest.lstrip("-").startswith(("I", "N"))',
        "False",
        ("tests/unit/test_refused_at_once.py::test_an_infinity_is_left_to_arrow",),
    ),
    Mutant(
        "zeros behind the places of a decimal are refused next to a bad value",
        "formats/refused_text.py",
        "    if scaled != scaled.to_integral_value(context=_EXACT):\n",
        "    if places > type_.scale:\n",
        (
            "tests/unit/test_refused_at_once.py::test_zeros_behind_the_places_of_a_decimal_are_taken_also_next_to_a_bad_value",
        ),
    ),
    Mutant(
        "a number is refused for the exponent that its fraction allows",
        "formats/json/refused_objects.py",
        ' + len(exponent["fraction"] or "")',
        "",
        ("tests/unit/test_refused_at_once.py::test_what_is_learned_of_one_number_is_not_said_of_another",),
    ),
    Mutant(
        "an element that no column takes is refused",
        "formats/json/refused_objects.py",
        "value = value[step] if step < len(value) else None",
        "value = value[0] if value else None",
        ("tests/unit/test_refused_at_once.py::test_what_is_not_sure_is_left_to_arrow",),
    ),
    Mutant(
        "NaN is refused in a value that is kept as it is",
        "formats/json/refused_objects.py",
        " and each.path.parts != ((),)\n",
        "\n",
        ("tests/unit/test_refused_at_once.py::test_what_is_not_sure_is_left_to_arrow",),
    ),
    Mutant(
        "objects with NaN are decoded one by one",
        "formats/json/refused_objects.py",
        "if self._as_text and _CONSTANT.search(value) and",
        "if False and",
        ("tests/unit/test_refused_at_once.py::test_bad_values_are_not_decoded_one_by_one",),
    ),
    Mutant(
        "nanoseconds are counted as microseconds",
        "formats/connect/times.py",
        'number // 1000 if unit == "ns" else',
        'number if unit == "ns" else',
        (
            "tests/unit/test_refused_at_once.py::test_a_block_of_json_with_numbers_since_1970_has_the_reasons_of_its_values",
        ),
    ),
    Mutant(
        "a truncate is refused for a row that nothing looks at",
        "formats/debezium/refused_events.py",
        "        if op not in (*WRITES, DELETE):\n",
        "        if False:\n",
        ("tests/unit/test_refused_at_once.py::test_what_is_not_sure_is_left_to_arrow",),
    ),
    Mutant(
        "the other image is refused for a float next to NaN",
        "formats/debezium/refused_events.py",
        " or type_ is None or pa.types.is_floating(type_):\n",
        " or type_ is None:\n",
        ("tests/unit/test_refused_at_once.py::test_what_is_not_sure_is_left_to_arrow",),
    ),
    Mutant(
        "a decimal that is written with an escape is refused",
        "formats/debezium/refused_events.py",
        'self._may_be_base64 and b"\\\\" not in value',
        "self._may_be_base64",
        ("tests/unit/test_refused_at_once.py::test_what_is_not_sure_is_left_to_arrow",),
    ),
    Mutant(
        "NaN in an array is refused",
        "formats/debezium/refused_events.py",
        "(value if type(value) is list else (value,))",
        "(value,)",
        ("tests/unit/test_refused_at_once.py::test_what_is_not_sure_is_left_to_arrow",),
    ),
    Mutant(
        "text next to a placeholder is refused",
        "formats/debezium/refused_events.py",
        "return None if reason == NUL and self._may_be_unavailable(value) else reason",
        "return reason",
        ("tests/unit/test_refused_at_once.py::test_text_next_to_a_placeholder_is_not_looked_at",),
    ),
    Mutant(
        "a value is refused because another one was left out",
        "formats/debezium/decoder.py",
        "return self._marked_alike(event), repr(row.get(self.spec.field_names[column.name]))",
        "return self._marked_alike(event)",
        ("tests/unit/test_refused_at_once.py::test_what_is_not_sure_is_left_to_arrow",),
    ),
    Mutant(
        "times out of range are decoded one by one",
        "formats/debezium/refused_events.py",
        "            parts.values[name] = _convert(type_, value)\n",
        "            pass\n",
        ("tests/unit/test_refused_at_once.py::test_bad_values_are_not_decoded_one_by_one",),
    ),
    Mutant(
        "text that is JSON is searched as a value of Avro",
        "formats/debezium/decoder.py",
        " if readings[each.name].of_json is None]",
        "]",
        (
            "tests/unit/test_refused_at_once.py::test_a_block_of_flattened_events_has_the_reasons_of_its_values",
        ),
    ),
    Mutant(
        "a column of a draft is widened although that rejects no fewer records",
        "sampling/draft.py",
        ".rejects))) < fewest:\n",
        ".rejects))) >= 0:\n",
        ("tests/unit/test_new_columns.py::test_one_value_that_no_type_accepts_breaks_its_record_alone",),
    ),
    Mutant(
        "an Upsert is proposed for records that give several rows of one key",
        "sampling/key_and_sink.py",
        "        if not _repeats_a_key(changes, proposal.traits.key_columns):\n",
        "        if True:\n",
        (
            "tests/unit/test_new_columns.py"
            "::test_a_compacted_topic_with_several_rows_of_one_key_in_a_record_is_appended",
        ),
    ),
    Mutant(
        "a number without a name in a closed enum is an integer",
        "formats/protobuf/wire.py",
        "        if names is not None and number not in names:\n",
        "        if False:\n",
        ("tests/unit/test_protobuf.py::test_a_number_without_a_name_in_a_closed_enum_is_a_reject",),
    ),
    Mutant(
        "a number without a name in a closed enum is left out of JSON",
        "formats/protobuf/wire.py",
        "    _check_parsed_below(parsed)\n",
        "",
        ("tests/unit/test_protobuf.py::test_a_number_without_a_name_in_a_closed_enum_is_a_reject",),
    ),
    Mutant(
        "numbers of Protobuf are cut to 32 bits",
        "formats/protobuf/wire.py",
        "        if number not in numbers:\n",
        "        if False:\n",
        ("tests/unit/test_protobuf.py::test_a_number_that_the_descriptors_type_does_not_have_is_a_reject",),
    ),
    Mutant(
        "numbers in a message of Protobuf are cut to 32 bits",
        "formats/protobuf/wire.py",
        "    if parsed.SerializePartialToString(deterministic=True) != written:\n",
        "    if False:\n",
        ("tests/unit/test_protobuf.py::test_a_number_that_the_descriptors_type_does_not_have_is_a_reject",),
    ),
    Mutant(
        "a field with another wire type reads as unset",
        "formats/protobuf/wire.py",
        "            if unknown.field_number == field.number:\n",
        "            if False:\n",
        ("tests/unit/test_protobuf.py::test_a_field_with_another_wire_type_is_a_reject",),
    ),
    Mutant(
        "a wrapper with another wire type reads as unset",
        "formats/protobuf/ways.py",
        "        for check in checks:\n",
        "        for check in ():\n",
        ("tests/unit/test_protobuf.py::test_a_wrapper_or_time_with_another_wire_type_is_a_reject",),
    ),
    Mutant(
        "a floating-point number of Avro is cut to an integer",
        "formats/debezium/avro_events.py",
        "if pa.types.is_integer(element) and _has_float(values):",
        "if False:",
        ("tests/unit/test_debezium_refusals.py::test_no_floating_point_number_becomes_an_integer",),
    ),
    Mutant(
        "a string of Protobuf that is no text is Python's form of its bytes",
        "formats/protobuf/wire.py",
        "    elif field.type == _STRING and any(",
        "    elif False and any(",
        ("tests/unit/test_protobuf.py::test_a_string_that_is_not_utf8_is_a_reject_in_json_too",),
    ),
    Mutant(
        "a message without a required field ends the batch",
        "formats/protobuf/wire.py",
        "    written = message.SerializePartialToString(",
        "    written = message.SerializeToString(",
        ("tests/unit/test_protobuf.py::test_a_required_field_may_be_missing",),
    ),
    Mutant(
        "a decimal is its base64 in JSON",
        "formats/connect/readings.py",
        "        if written.name in _ENCODED:\n",
        "        if False:\n",
        ("tests/unit/test_debezium_refusals.py::test_a_value_that_does_not_fit_its_column_is_a_reject",),
    ),
    Mutant(
        "a logical type counts on any type of Avro",
        "formats/connect/types_of_schema.py",
        '_LOGICAL.get((str(logical), kind), "")',
        'next((name for (each, _), name in _LOGICAL.items() if each == logical), "")',
        ("tests/unit/test_debezium_refusals.py::test_a_logical_type_on_another_type_of_avro_is_ignored",),
    ),
    Mutant(
        "a string is a row of several columns",
        "formats/avro/decoder.py",
        "        if not self._is_record and len(columns) > 1:\n",
        "        if False:\n",
        ("tests/unit/test_avro.py::test_a_schema_that_is_no_record_is_a_reject_for_several_columns",),
    ),
    Mutant(
        "an integer of a document is what Python takes for one",
        "formats/debezium/documents.py",
        "    if _INTEGER.fullmatch(text) is None or ",
        "    if ",
        ("tests/unit/test_debezium_documents.py::test_a_value_that_cannot_arrive_is_a_reject",),
    ),
    Mutant(
        "of a field that a document names twice the last one counts",
        "formats/debezium/documents.py",
        "    if len(found) < len(pairs):\n",
        "    if False:\n",
        ("tests/unit/test_debezium_documents.py::test_a_document_with_a_name_twice_is_a_reject",),
    ),
    Mutant(
        "numbers of a domain are numbers in messages",
        "batch/publishing/outbox.py",
        "        type_ = types[name].leaf\n",
        "        type_ = types[name]\n",
        (f"{_FORWARD}::test_numbers_of_domains_can_be_text",),
    ),
    Mutant(
        "a truncate deletes only what is affected anyway",
        "sinks/upsert/truncates.py",
        "        if row[0]:\n",
        "        if False:\n",
        (f"{_TRUNCATES}::test_a_truncate_deletes_what_is_not_newer",),
    ),
    Mutant(
        "a change that arrives after a newer truncate makes a row",
        "sinks/upsert/latest_changes.py",
        "            self.truncates.delete_older(cursor, latest, self.newest_truncate)\n",
        "            pass\n",
        (f"{_TRUNCATES}::test_a_change_that_arrives_after_the_truncate_stays_deleted_if_it_is_older",),
    ),
    Mutant(
        "a change at the position of a truncate is newer",
        "sinks/upsert/change_order.py",
        '_FALSE: Final = sql.SQL("false")',
        '_FALSE: Final = sql.SQL("true")',
        (f"{_TRUNCATES}::test_a_truncate_deletes_what_is_not_newer",),
    ),
    Mutant(
        "the rows of a truncate that a replay retracts stay deleted",
        "sinks/upsert/with_history.py",
        "            self._truncates.affect(cursor, truncates, affected)\n",
        "            pass\n",
        (f"{_TRUNCATES}::test_a_replay_retracts_a_truncate_and_applies_it_again",),
    ),
    Mutant(
        "a truncate deletes the rows of other pipelines",
        "sinks/upsert/writer.py",
        "        if pipelines and self.traits.applies_truncates:\n",
        "        if False:\n",
        (f"{_TRUNCATES}::test_pipelines_that_share_a_target_cannot_apply_truncates",),
    ),
    Mutant(
        "compaction drops changes that are newer than the truncate",
        "sinks/upsert/change_compaction.py",
        '{newest_first})) is not true"\n',
        '{newest_first})) is not null"\n',
        (f"{_TRUNCATES}::test_compaction_drops_what_a_truncate_has_deleted_and_keeps_the_newest_one",),
    ),
    Mutant(
        "the audit of an Upsert ignores truncates",
        "sinks/upsert/audit.py",
        "        after_truncates=_after_truncates(version),\n",
        '        after_truncates=sql.SQL(""),\n',
        (f"{_TRUNCATES}::test_the_audit_finds_a_row_that_a_truncate_should_have_deleted_and_a_missing_one",),
    ),
    Mutant(
        "a delete without a key is taken for a truncate",
        "formats/upsert_changes.py",
        "            lacking = pc.and_not(lacking, changes.truncated)\n",
        "            lacking = pc.and_not(lacking, changes.rows.column('deleted'))\n",
        ("tests/unit/test_debezium_truncates.py::test_a_truncate_is_a_delete_without_a_key",),
    ),
    Mutant(
        "truncates are applied to the rows of several topics",
        "pipeline.py",
        "            isinstance(self.topic_names, tuple) and len(self.topic_names) == 1,\n",
        "            True,\n",
        ("tests/unit/test_debezium_truncates.py::test_a_pipeline_that_cannot_apply_truncates_is_refused",),
    ),
    Mutant(
        "a version that a truncate does not have orders it",
        "sinks/upsert/spec.py",
        "(others := sorted({*versions} - {*order}))",
        "(others := [])",
        ("tests/unit/test_debezium_truncates.py::test_a_pipeline_that_cannot_apply_truncates_is_refused",),
    ),
    Mutant(
        "compaction drops the change that has a value which another one lacks",
        "sinks/upsert/change_compaction.py",
        "bool_and(is_superseded) as is_superseded",
        "bool_or(is_superseded) as is_superseded",
        (
            "tests/integration/test_unavailable_values.py::test_any_order_of_events_gives_what_a_plain_program_says_and_in_the_end_the_source",
        ),
    ),
    Mutant(
        "versions are compared by an operator that the login finds",
        "sinks/upsert/latest_changes.py",
        "            and self._is_comparable(cursor)\n",
        "",
        (
            "tests/integration/test_latest_changes.py"
            "::test_versions_of_a_type_whose_operators_the_login_does_not_find_are_ordered_by_their_type",
        ),
    ),
    Mutant(
        "earlier changes may have moved since they were found",
        "sinks/upsert/latest_changes.py",
        "        if kept and cursor.rowcount != kept:\n",
        "        if False:\n",
        (
            "tests/integration/test_latest_changes.py::test_a_changed_place_of_a_change_that_is_kept_is_noticed",
        ),
    ),
    Mutant(
        "a transform with a shuffle is taken for one without",
        "transforms/narrow_plan.py",
        "    while (kind := find_class_name(plan)) in _NARROW:\n",
        '    while (kind := find_class_name(plan)) in _NARROW or "Exchange" in kind:\n',
        ("tests/integration/test_one_pass.py::test_plans_that_spark_runs_otherwise",),
    ),
    Mutant(
        "columns that a transform computes something with reach it as nulls",
        "transforms/narrow_plan.py",
        "                used |= _references(items(plan.expressions()))\n",
        "                pass\n",
        ("tests/integration/test_one_pass.py::test_columns_of_records_are_traced",),
    ),
    Mutant(
        "an unchanged column may be that of another record",
        "batch/transform/one_pass.py",
        "        if (wrong := self._offsets[indexes] != offsets).any():\n",
        "        if (wrong := self._offsets[indexes] != self._offsets[indexes]).any():\n",
        ("tests/unit/test_one_pass_tasks.py::test_a_row_of_a_record_that_was_not_kept_is_an_error",),
    ),
    Mutant(
        "tasks that read several partitions send only offsets through the JVM",
        "batch/transform/transform_stager.py",
        "        return all(len({task.range.topic_partition for task in bin_}) == 1 for bin_ in self._bins)\n",
        "        return True\n",
        (
            "tests/integration/test_one_pass.py::"
            "test_a_task_that_reads_one_partition_sends_only_offsets_through_the_jvm",
        ),
    ),
    Mutant(
        "rows of a task that reads several partitions are all staged as of the first",
        "batch/transform/transform_stager.py",
        'if "kafka_topic" in unchanged else None',
        "if unchanged else None",
        ("tests/integration/test_one_pass.py::test_one_pass_has_the_rows_rejects_and_counts_of_several",),
    ),
    Mutant(
        "rows that come out of order are counted as records",
        "batch/transform/one_pass.py",
        "        self._in_order = bool((steps >= 0).all())\n",
        "",
        (
            "tests/unit/test_one_pass_tasks.py::test_rows_out_of_order_or_of_no_record_of_the_task_are_not_counted",
        ),
    ),
    Mutant(
        "an aggregate does not count what it had",
        "sinks/aggregate/partial_results.py",
        '"from {partial} p join (select distinct {group_columns} from {affected}) k on {same_group} "\n',
        '"from {partial} p join (select distinct {group_columns} from {affected}) k on {same_group} "\n'
        '                "where p.batch_id = (select max(batch_id) from {partial}) "\n',
        (f"{_AGGREGATE}::test_a_group_whose_row_was_deleted_is_merged_from_all_partial_results",),
    ),
    Mutant(
        "a range of a superseded batch commits",
        "batch/by_partition/partition_commit.py",
        '    if batch.status == "superseded":\n',
        "    if False:\n",
        (f"{_PARTITION}::test_batch_superseded_while_range_is_copied_does_not_commit_it",),
    ),
    Mutant(
        "a range does not look where the stored offset stands",
        "batch/by_partition/partition_commit.py",
        "    if (next_offset, topic_id) == (range_.from_offset, range_.topic_id):\n",
        "    if True:\n",
        (f"{_PARTITION}::test_range_whose_stored_offset_has_moved_otherwise_is_fenced",),
    ),
    Mutant(
        "an audit takes the log to start where it did when the audit began",
        "audit/run_audit.py",
        "max(offset, earliest[key]) for key",
        "earliest[key] for key",
        (
            "tests/integration/test_audit_retention.py::test_values_of_removed_records_are_not_held_against_the_target",
        ),
    ),
    Mutant(
        "an audit holds rows against a small log whose start retention has moved",
        "audit/log_windows.py",
        "place.offset = place.earliest = _start_after",
        "place.offset = _start_after",
        (
            "tests/integration/test_audit_retention.py"
            "::test_what_retention_removes_during_an_audit_counts_as_removed",
        ),
    ),
    Mutant(
        "the auditor takes a row of a tombstone for the record's",
        "audit/offset_sets.py",
        "        wrong = np.union1d(wrong, rowless[is_found[rowless - start]])\n",
        "",
        (f"{_OFFSETS}::test_a_row_of_a_record_that_gives_none_is_found",),
    ),
    Mutant(
        "the auditor takes a row of a heartbeat for the record's",
        "audit/rowless.py",
        "~is_found | ~self._are_changes(values)",
        "~is_found",
        ("tests/unit/test_audit_rowless.py",),
    ),
    Mutant(
        "the auditor takes deeply nested JSON for a reject",
        "audit/json_members.py",
        "                deep.append(index)\n",
        '                reasons[index] = "too deep"\n',
        ("tests/unit/test_json_wrapped.py",),
    ),
    Mutant(
        "the audit of an Aggregate keeps all rejects in memory",
        "audit/values.py",
        "needs all of them\n            return\n",
        "needs all of them\n",
        ("tests/integration/test_audit_values.py::test_rejects_of_an_aggregate_are_not_kept",),
    ),
    Mutant(
        "an audit of an Aggregate casts values that are not of their type",
        "audit/values.py",
        "batch_id=0, evolve=evolve)\n",
        'batch_id=0, evolve=evolve) if sink.lineage == "record" else []\n',
        (
            "tests/integration/test_audit_values.py"
            "::test_a_record_that_an_aggregate_rejected_and_nobody_names_does_not_end_the_audit",
        ),
    ),
    Mutant(
        "the auditor does not look for records without a row",
        "audit/offset_sets.py",
        "        result.missing.add(absent[~is_below])\n",
        "",
        (_OFFSETS,),
    ),
    Mutant(
        "the auditor does not look for offsets with two rows",
        "audit/offset_sets.py",
        "        result.duplicated.add(found.repeated)\n",
        "",
        (_OFFSETS,),
    ),
    Mutant(
        "the auditor does not look which batch a row is of",
        "audit/offset_sets.py",
        "        self._misplaced.append(at[is_misplaced])\n",
        "",
        (_OFFSETS,),
    ),
    Mutant(
        "the auditor does not look for gaps",
        "audit/covering.py",
        "        is_gap = reached < following\n",
        "        is_gap = reached < reached\n",
        (_OFFSETS,),
    ),
    Mutant(
        "the auditor does not look for an offset twice among the rows that arrive together",
        "audit/offset_sets.py",
        "        if not (at[1:] > at[:-1]).all():\n",
        "        if False:\n",
        (_OFFSETS,),
    ),
    Mutant(
        "the auditor does not look for an offset again in rows that arrive later",
        "audit/offset_sets.py",
        "        self._repeated.append(at[self._is_found[at]])\n",
        "",
        (_OFFSETS,),
    ),
    Mutant(
        "the auditor leaves out the last offset of a window",
        "audit/offset_sets.py",
        "        is_inside = (offsets >= start) & (offsets < self._positions.ends[number])\n",
        "        is_inside = (offsets >= start) & (offsets < self._positions.ends[number] - 1)\n",
        (_OFFSETS,),
    ),
    Mutant(
        "the auditor does not look past the last window",
        "audit/offset_sets.py",
        "            if slice_.is_last:\n",
        "            if False:\n",
        (_OFFSETS,),
    ),
    Mutant(
        "the auditor takes the end of the log for a record",
        "audit/log_windows.py",
        "[message for message in read if message.error() is None]",
        "list(read)",
        (f"{_AUDIT}::test_the_end_of_a_log_that_ends_with_a_marker_is_no_record",),
    ),
    Mutant(
        "the auditor takes no record for a tombstone",
        "audit/log_windows.py",
        "np.array(nulls, np.int64)",
        "np.array(nulls[:0], np.int64)",
        (f"{_AUDIT}::test_tombstones_and_rejects_are_accounted_for",),
    ),
    Mutant(
        "the auditor takes 0 and -0 for the same value",
        "audit/equal_values.py",
        "    return array.view(_BITS[array.type]) if array.type in _BITS else array\n",
        "    return array\n",
        ("tests/unit/test_audit_equal_values.py",),
    ),
    Mutant(
        "the auditor compares only values that are not null",
        "audit/equal_values.py",
        "    is_different = pc.or_(pc.fill_null(pc.not_equal(expected, actual), False), one_is_null)\n",
        "    is_different = pc.fill_null(pc.not_equal(expected, actual), False)\n",
        ("tests/unit/test_audit_equal_values.py",),
    ),
    Mutant(
        "the auditor takes values of different types for equal",
        "audit/equal_values.py",
        "        return pa.array(np.ones(len(records), bool))\n",
        "        return pa.array(np.zeros(len(records), bool))\n",
        ("tests/unit/test_audit_equal_values.py",),
    ),
    Mutant(
        "a worker of the auditor sees what was committed since the audit began",
        "audit/snapshot.py",
        "        snapshot.join(name)\n",
        "",
        (f"{_AUDIT_WORKERS}::test_workers_see_the_snapshot_of_the_audit",),
    ),
    Mutant(
        "the auditor does not look for rows that claim to be elsewhere",
        "audit/places.py",
        "    if suspects:\n",
        "    if False:\n",
        (f"{_AUDIT}::test_rows_are_found_wherever_they_claim_to_be",),
    ),
    Mutant(
        "the auditor takes any batch's rows for those of a pipeline with the same target",
        "audit/places.py",
        " if TargetTable(target).name == own]\n",
        "]\n",
        (f"{_AUDIT}::test_rows_are_found_wherever_they_claim_to_be",),
    ),
    Mutant(
        "the auditor does not compare batches with what the ledger counted",
        "audit/places.py",
        "            report.miscounted += 1\n",
        "            pass\n",
        (f"{_AUDIT}::test_rows_that_log_no_longer_proves_are_counted_by_ledger",),
    ),
    Mutant(
        "the auditor reads the ledger as it contradicts itself",
        "audit/places.py",
        "    report.contradictory = len(contradictions)\n",
        "",
        (f"{_AUDIT}::test_a_ledger_that_contradicts_itself_is_found",),
    ),
    Mutant(
        "the auditor does not look whether row security hides rows",
        "audit/check_access.py",
        "        if is_filtered:\n",
        "        if False:\n",
        (f"{_AUDIT}::test_rows_that_a_login_cannot_see_are_no_lost_ones",),
    ),
    Mutant(
        "the auditor compares values by =",
        "audit/derived.py",
        '"record_image_ne(row({}), row({}))"',
        '"row({}) is distinct from row({})"',
        ("tests/integration/test_audit_planted.py::test_what_is_planted_is_found",),
    ),
    Mutant(
        "an executor commits over the batch that got the number of its own",
        "batch/by_partition/partition_commit.py",
        'ledger.batches.read(task.batch_id, task.plan_id, lock="share")',
        'ledger.batches.read(task.batch_id, lock="share")',
        (f"{_FAILOVER}::test_executor_of_lost_batch_commits_nothing_over_one_that_has_its_number",),
    ),
    Mutant(
        "a batch is known by its number alone",
        "ledger/batches.py",
        "        if row is None or plan_id not in (None, row.plan_id):\n",
        "        if row is None:\n",
        (f"{_FAILOVER}::test_restore_next_to_airflow_and_kafka_not_restored",),
    ),
    Mutant(
        "a failure is noted whatever plan has the number",
        "ledger/queries/batches.sql",
        "where batch_id = :batch_id and plan_id = :plan_id\n",
        "where batch_id = :batch_id\n",
        (f"{_FAILOVER}::test_driver_whose_batch_is_lost_under_it_notes_no_failure_of_another_batch",),
    ),
    Mutant(
        "what was marked as success is announced",
        "airflow/check_batches.py",
        '    if batch.status != "committed":\n',
        "    if False:\n",
        (f"{_BUTTONS}::test_what_was_marked_as_success_and_never_committed_is_not_announced",),
    ),
    Mutant(
        "a task takes the batch of another run",
        "airflow/check_batches.py",
        "    if run_of_batch != run_of_task:\n",
        "    if False:\n",
        (f"{_BUTTONS}::test_tasks_take_no_batch_of_another_run",),
    ),
    Mutant(
        "a time without a record is kept",
        "planning/freeze_replay.py",
        "                first is not None\n                and neighbours",
        "                neighbours",
        (f"{_BUTTONS}::test_interval_asked_for_too_early_is_processed_later",),
    ),
    Mutant(
        "a time whose first record retention may have removed is kept",
        "planning/freeze_replay.py",
        "                and not _may_be_removed(partition, situation.first_records, at)\n",
        "",
        (f"{_REPLAY}::test_a_window_whose_beginning_was_removed_is_refused",),
    ),
    Mutant(
        "a DAG run fails whose results another forwarder sends",
        "airflow/tasks/report_batch.py",
        "raise AirflowSkipException(str(error)) from None",
        "raise",
        (f"{_FORWARD}::test_the_task_is_skipped_if_another_forwarder_takes_over",),
    ),
    Mutant(
        "a table that cannot be registered keeps register from the others",
        "cli/register.py",
        "                failed[member.name] = error\n            else:\n                if is_new:",
        "                raise\n            else:\n                if is_new:",
        (f"{_TABLES}::test_a_table_that_cannot_be_registered_stops_no_other",),
    ),
    Mutant(
        "what the user calls may keep a batch from being noted as announced",
        "airflow/task_definitions.py",
        "[note_announced, *on_success, send_progress]",
        "[*on_success, note_announced, send_progress]",
        (f"{_BUTTONS}::test_a_batch_is_noted_as_announced_before_what_the_user_calls",),
    ),
    Mutant(
        "the lag of each pipeline reads the registrations of all",
        "ledger/registry.py",
        "        if (definition := self._find(name)) is not None:\n            return [definition]\n",
        "        if self.read_all() and (definition := self._find(name)):\n            return [definition]\n",
        ("tests/integration/test_lag.py::test_the_lag_of_one_does_not_read_all_registrations",),
    ),
    Mutant(
        "a batch counts as announced before Airflow has the event",
        "airflow/tasks/report_batch.py",
        "        ti.xcom_push(key=ANNOUNCED, ",
        "        announce(settings, chain.from_iterable(announced.values()))\n"
        "        ti.xcom_push(key=ANNOUNCED, ",
        (f"{_BUTTONS}::test_report_that_dies_after_all_its_work_leaves_batch_to_next_run",),
    ),
    Mutant(
        "a replay retracts from one of several targets",
        "sinks/several_writer.py",
        "return [part.retract(cursor, parts) for part in self.parts][-1]",
        "return self.parts[-1].retract(cursor, parts)",
        (f"{_TOGETHER}::test_a_replay_retracts_from_both_targets",),
    ),
    Mutant(
        "a value that one of several targets cannot hold is not looked for",
        "sinks/several_writer.py",
        "for part in self.parts\n            for rule in part.reject_rules(",
        "for part in self.parts[-1:]\n            for rule in part.reject_rules(",
        (f"{_TOGETHER}::test_a_value_that_one_target_cannot_hold_rejects_the_record_for_both[_raw]",),
    ),
    Mutant(
        "an audit compares one of several targets",
        "audit/run_audit.py",
        "    parts = pipeline.traits.parts\n",
        "    parts = pipeline.traits.parts[-1:]\n",
        (f"{_TOGETHER}::test_an_audit_finds_a_planted_difference_in_either_target",),
    ),
    Mutant(
        "an audit takes what is missing next to a compacted target for compacted",
        "audit/run_audit.py",
        "ledger.coverage.read_horizons(pipeline) if isinstance(writer, Compacts) else {}",
        "ledger.coverage.read_horizons(pipeline)",
        (f"{_TOGETHER}::test_compacting_the_upsert_leaves_the_append_and_its_audit",),
    ),
    Mutant(
        "a topic that joins later starts at the end of its log",
        "planning/freeze_advance.py",
        "if not new or (by_pattern and known and isinstance(pipeline.start, str)):",
        "if not new:",
        (f"{_PATTERNS}::test_a_topic_that_joins_later_loses_no_record_whatever_the_start[latest]",),
    ),
    Mutant(
        "a table that joins starts at the end of its log",
        "planning/members.py",
        'replace(member, start="earliest")',
        "member",
        (f"{_TABLES}::test_a_table_that_joins_is_registered_by_the_plan_and_loses_no_record[latest]",),
    ),
    Mutant(
        "a pattern matches internal topics",
        "topic_pattern.py",
        "return None if topic.startswith(_INTERNAL_PREFIX) else ",
        "return ",
        ("tests/unit/test_topic_pattern.py::test_a_pattern_matches_whole_names_and_no_internal_topic",),
    ),
    Mutant(
        "a plan uses what was observed before other offsets were stored",
        "planning/freeze_advance.py",
        "if observed is None or observed.stored != seen:",
        "if observed is None:",
        (f"{_TABLES}::test_a_plan_does_not_use_what_was_observed_before_a_batch_committed",),
    ),
    Mutant(
        "two pipelines with one target load a topic that the pattern of one matches",
        "ledger/definition.py",
        "if (topic in own.topics or own.loads(topic)) and (topic in other.topics or other.loads(topic))",
        "if topic in own.topics and topic in other.topics",
        ("tests/unit/test_topic_pattern.py::test_pipelines_with_one_target_share_what_a_pattern_matches",),
    ),
    Mutant(
        "a batch that is announced again counts again in metrics",
        "ledger/queries/batches.sql",
        "set announced_at = clock_timestamp()\n"
        "where plan_id = any(:plan_ids::uuid[]) and announced_at is null and status <> 'planned'\n",
        "set announced_at = clock_timestamp()\nwhere plan_id = any(:plan_ids::uuid[]) and status <> 'planned'\n",
        (f"{_BUTTONS}::test_each_batch_counts_once_in_metrics_and_gauges_follow_the_pipeline",),
    ),
    Mutant(
        "batches of many tables that were announced are announced again",
        "ledger/queries/batches.sql",
        "from exactbatch.batch\n"
        "where plan_id = any(:plan_ids::uuid[]) and announced_at is null and status <> 'planned'\n",
        "from exactbatch.batch\nwhere plan_id = any(:plan_ids::uuid[]) and status <> 'planned'\n",
        (
            "tests/integration/test_tables_tasks.py"
            "::test_what_is_committed_is_announced_once_although_a_table_fails",
        ),
    ),
    Mutant(
        "lineage has one of several targets",
        "airflow/openlineage_facets.py",
        "registry.read(batch.pipeline).targets)",
        "registry.read(batch.pipeline).targets[:1])",
        ("tests/integration/test_lineage_events.py::test_all_targets_of_a_batch_are_outputs",),
    ),
    Mutant(
        "a user of the bootstrap servers is in the name of a dataset",
        "airflow/openlineage_facets.py",
        '.rpartition("://")[2].rpartition("@")[2]',
        '.rpartition("://")[2]',
        ("tests/unit/test_openlineage.py::test_a_cluster_is_named_by_its_first_server",),
    ),
    Mutant(
        "migrate upgrades an older ledger without a question",
        "cli/migrate.py",
        "            yes=yes,\n",
        "            yes=True,\n",
        (
            "tests/integration/test_upgrade_question.py"
            "::test_without_a_terminal_an_old_ledger_is_left_as_it_is",
        ),
    ),
    Mutant(
        "what cannot be undone is done without a terminal to ask on",
        "cli/console.py",
        "    if yes:\n",
        "    if yes or sys.stdin is None:\n",
        (f"{_QUESTIONS}::test_nothing_that_cannot_be_undone_is_done_without_an_answer",),
    ),
    Mutant(
        "a dry run begins an epoch",
        "cli/new_epoch.py",
        "        if not dry_run:\n",
        "        if yes or dry_run:\n",
        (f"{_QUESTIONS}::test_nothing_that_cannot_be_undone_is_done_without_an_answer[new_epoch]",),
    ),
    Mutant(
        "a dry run withdraws a replay",
        "cli/replay.py",
        "        if not options.dry_run:\n",
        "        if options.yes or options.dry_run:\n",
        (f"{_QUESTIONS}::test_nothing_that_cannot_be_undone_is_done_without_an_answer[withdraw]",),
    ),
    Mutant(
        "boundaries outside of the given times would be forgotten, says a dry run",
        "ledger/queries/time_boundaries.sql",
        "is null or boundary >= :from_time)",
        "is null or true)",
        (f"{_QUESTIONS}::test_nothing_that_cannot_be_undone_is_done_without_an_answer[boundaries]",),
    ),
    Mutant(
        "an older program takes a newer ledger for its own",
        "ledger/schema.py",
        "    if current > known[-1][0]:\n",
        "    if False:\n",
        (
            "tests/integration/test_ledger.py::test_older_and_newer_ledger_are_refused_and_say_who_has_to_move",
        ),
    ),
    Mutant(
        "a replay gives nothing back of what it cuts in the middle",
        "coverage.py",
        "                if reached[row] < range_.from_offset:\n",
        "                if False:\n",
        ("tests/integration/test_growth.py::test_what_ranges_leave_of_the_coverage",),
    ),
    Mutant(
        "a record with a wrong time hides what follows it",
        "planning/situation.py",
        "        if hidden is not None:\n",
        "        if False:\n",
        (f"{_BUTTONS}::test_record_with_wrong_time_does_not_hide_what_follows_it",),
    ),
    Mutant(
        "a window over what was never processed is skipped",
        "planning/freeze_replay.py",
        "    check_reached(planned)\n",
        "",
        (f"{_BUTTONS}::test_backfill_over_what_was_never_processed_fails_and_says_so",),
    ),
    Mutant(
        "a run that was created again replays the batch of the first one",
        "planning/run.py",
        "ledger.plans.begin_run(pipeline, run)",
        "pass",
        (f"{_BUTTONS}::test_run_deleted_and_created_again_moves_forward_when_it_is_cleared",),
    ),
    Mutant(
        "a run that had found nothing processes what has arrived since when it is cleared",
        "planning/run.py",
        "        if request is None and empty is not None and was_empty(run, earlier, empty):\n",
        "        if False:\n",
        (f"{_BUTTONS}::test_a_run_that_found_nothing_processes_nothing_when_it_is_cleared",),
    ),
    Mutant(
        "a run that was created again is as empty as the deleted one",
        "ledger/queries/plans.sql",
        "delete from exactbatch.empty_run where pipeline",
        "delete from exactbatch.empty_run where false and pipeline",
        (f"{_BUTTONS}::test_run_deleted_and_created_again_moves_forward_when_it_is_cleared",),
    ),
    Mutant(
        "what a superseded batch has committed is announced without its counts",
        "operations/report.py",
        "    counts = partly or batch\n",
        "    counts = batch\n",
        (f"{_BUTTONS}::test_ranges_that_superseded_batch_has_committed_are_announced",),
    ),
    Mutant(
        "a link runs code in a browser",
        "airflow/connections.py",
        '    return parts.scheme in ("http", "https") and bool(parts.netloc)\n',
        "    return True\n",
        ("tests/unit/test_links.py",),
    ),
    Mutant(
        "the same topics are loaded twice into one target",
        "ledger/definition.py",
        "    if own.shares_topics or (other.shares_topics and not adds):\n",
        "    if True:\n",
        (f"{_RENAMING}::test_new_name_for_same_topics_and_target_is_refused_with_both_ways_out",),
    ),
    Mutant(
        "the past can be given to another pipeline by hand",
        "ledger/migrations/0021_rights.sql",
        " and pg_trigger_depth() > 1 then",
        " then",
        (f"{_RENAMING}::test_nobody_moves_the_past_to_another_pipeline_by_hand",),
    ),
    Mutant(
        "checksums are not verified",
        "kafka/properties.py",
        '"check.crcs": Fixed(True, ',
        '"check.crcs": Fixed(False, ',
        ("tests/integration/test_read.py::test_a_damaged_record_is_an_error_and_no_value",),
    ),
    Mutant(
        "an event of the group's coordinator ends a read",
        "kafka/client_errors.py",
        "    return event.topic() is not None or (error is not None and error.fatal())",
        "    return True",
        ("tests/integration/test_kafka_acls.py::test_the_reader_needs_no_group",),
    ),
    Mutant(
        "a damaged offset is taken for a hole in the log",
        "kafka/consumer.py",
        "    if end <= offset:\n        raise ReadFailed(",
        "    if False:\n        raise ReadFailed(",
        ("tests/integration/test_read.py::test_a_damaged_offset_is_no_hole_in_the_log",),
    ),
    Mutant(
        "aborted records are no progress",
        "kafka/reader.py",
        "        if fetched > max(progress.position, progress.passed):",
        "        if False:",
        ("tests/integration/test_read.py::test_aborted_records_are_progress",),
    ),
    Mutant(
        "a topic that nobody may ask about is not compacted",
        "kafka/broker.py",
        "        return {topic: values for topic, values in found.items() if None not in values}\n",
        '        return {topic: found.get(topic, ("delete",) * len(names)) for topic in topics}\n',
        (
            "tests/integration/test_kafka_acls.py"
            "::test_replay_whose_topic_nobody_may_ask_about_takes_nothing_back",
        ),
    ),
    Mutant(
        "a back door of the client is open",
        "kafka/properties.py",
        "    if why := REFUSED.get(name):",
        "    if why := None:",
        ("tests/unit/test_kafka_client.py::test_a_back_door_is_refused_with_the_reason",),
    ),
    Mutant(
        "a subquery over the records is taken for one record",
        "transforms/refused_plan.py",
        'self._need_batch("subquery")',
        "pass",
        (f"{_PLAN}::test_rows_of_several_records_are_allowed_by_batch_alone",),
    ),
    Mutant(
        "words for the time are constants",
        "transforms/refused_plan.py",
        "        if word := _WORD.match(str(child.value())):\n",
        "        if word := None:\n",
        (f"{_PLAN}::test_what_gives_another_result_each_time_is_refused_by_name",),
    ),
    Mutant(
        "what Spark calls nondeterministic passes if it is on no list",
        "transforms/refused_plan.py",
        "        elif flagged and kind not in _SUBQUERIES and _is_flagged(expression):\n",
        "        elif False:\n",
        (f"{_PLAN}::test_functions_of_user_are_judged_by_how_many_rows_they_get[declared]",),
    ),
    Mutant(
        "a fifth of a large target is not indexed",
        "sinks/tables/lineage_table.py",
        "if not partition_by:",
        "if partition_by:",
        (f"{_WRITES}::test_new_rows_of_a_large_table_are_indexed_soon",),
    ),
    Mutant(
        "lineage that a transform computes is taken as it is",
        "transforms/lineage.py",
        "if _is_computed(expression):",
        "if False:",
        (f"{_LINEAGE}::test_lineage_that_is_computed_is_refused",),
    ),
    Mutant(
        "lineage that nothing proves is not compared",
        "batch/transform/transform_stager.py",
        "if not self._is_proven:",
        "if False:",
        (f"{_ROWS}::test_lineage_that_belongs_to_another_record_is_refused",),
    ),
    Mutant(
        "a change that is neither a delete nor none passes",
        "batch/staging/uncastable.py",
        'sql.SQL("deleted is null")',
        'sql.SQL("false")',
        (f"{_ROWS}::test_change_that_is_neither_delete_nor_not_one_is_reject",),
    ),
    Mutant(
        "text that is not UTF-8 goes to Postgres",
        "batch/staging/transformed_rows.py",
        "elements.validate(full=True)",
        "pass",
        (f"{_ROWS}::test_value_that_no_table_can_hold_makes_its_record_reject",),
    ),
    Mutant(
        "a replay takes a delete back whose tombstone may be gone",
        "planning/refused_replays.py",
        "        if remaining:",
        "        if False:",
        (
            "tests/integration/test_surprises.py::test_replay_that_would_bring_back_what_delete_has_removed_is_refused",
        ),
    ),
    Mutant(
        "rows whose key is not the message's are made again from a compacted topic",
        "pipeline.py",
        "            and self.message_key is not None\n",
        "",
        (
            "tests/integration/test_surprises.py::test_replay_that_would_bring_back_what_delete_has_removed_is_refused",
        ),
    ),
    Mutant(
        "an executor may read from another cluster",
        "kafka/consumer.py",
        "    if connected_to not in (None, cluster_id):",
        "    if False:",
        (
            "tests/integration/test_log_identity.py::test_executors_that_reach_another_cluster_than_planner_write_nothing",
        ),
    ),
    Mutant(
        "a lost range takes those that are read with it along",
        "kafka/reader.py",
        "        if error.retryable or not concerned:",
        "        if True:",
        ("tests/unit/test_shared_reads.py::test_the_error_of_one_range_is_no_error_of_the_others",),
    ),
    Mutant(
        "small ranges of large records are held all the same",
        "kafka/reader.py",
        "                    if bytes_ > _HELD_BYTES:",
        "                    if False:",
        ("tests/unit/test_shared_reads.py::test_ranges_with_large_records_are_read_in_smaller_groups",),
    ),
    Mutant(
        "two ranges of one partition are read together",
        "offsets.py",
        "        first_without[range_.topic_partition] = at + 1",
        "        first_without[range_.topic_partition] = at",
        ("tests/unit/test_offsets.py::test_several_small_ranges_of_each_partition_give_as_many_groups",),
    ),
    Mutant(
        "messages are left to the garbage collector when their consumer closes",
        "kafka/native_client.py",
        "        while self.held:",
        "        while False:",
        ("tests/unit/test_native_consumer.py::test_all_messages_are_destroyed_however_a_read_ends",),
    ),
    Mutant(
        "the queue of a consumer is not released",
        "kafka/native_client.py",
        "        self._library.queue_destroy(self._queue)\n",
        "",
        ("tests/unit/test_native_consumer.py::test_reads_leave_no_memory_descriptor_or_thread_behind",),
    ),
    Mutant(
        "a message is not destroyed",
        "kafka/native_records.py",
        "compiled.destroy(addresses[addresses != 0], function)",
        "compiled.destroy(addresses[addresses != 0][1:], function)",
        ("tests/unit/test_native_consumer.py::test_reads_leave_no_memory_descriptor_or_thread_behind",),
    ),
    Mutant(
        "a topic that an ACL hides is a broker that sends nothing",
        "kafka/reader.py",
        "                check_describable(consumer, stalled.range)\n",
        "                pass\n",
        (
            "tests/integration/test_kafka_acls.py"
            "::test_what_documentation_lists_is_enough_and_no_more_than_that",
        ),
    ),
    Mutant(
        "what an ACL hides from a consumer without objects is a broker that sends nothing",
        "kafka/native_client.py",
        "self._error(each.err) if each.err else None",
        "None",
        (
            "tests/integration/test_kafka_acls.py"
            "::test_what_documentation_lists_is_enough_and_no_more_than_that",
        ),
    ),
    Mutant(
        "a consumer without objects hides why it cannot connect",
        "kafka/native_client.py",
        "KafkaError(cause, _text(text.value), fatal=fatal)",
        "KafkaError(KafkaError._TRANSPORT, _text(text.value), fatal=fatal)",
        ("tests/integration/test_kafka_tls.py::test_both_readers_say_the_same",),
    ),
    Mutant(
        "messages are noted only after the call that returns them",
        "kafka/native_records.py",
        "self.addresses = held[self._key] = np.zeros(count, np.uint64)",
        "self.addresses, held[self._key] = np.zeros(count, np.uint64), np.zeros(0, np.uint64)",
        ("tests/unit/test_native_consumer.py::test_a_signal_between_two_statements_loses_no_message",),
    ),
    Mutant(
        "closing a consumer waits for ever for a lost message",
        "kafka/native_client.py",
        "closing.join(_CLOSE_TIMEOUT)",
        "closing.join()",
        (
            "tests/unit/test_native_consumer.py::test_a_consumer_that_librdkafka_cannot_close_is_left_to_a_thread",
        ),
    ),
    Mutant(
        "a callback of a consumer runs Python code",
        "kafka/consumer.py",
        "{name: noted.append for",
        "{name: (lambda event, to=noted: to.append(event)) for",
        ("tests/unit/test_native_consumer.py::test_callbacks_run_no_python_code",),
    ),
    Mutant(
        "records may come a second time at other offsets",
        "kafka/reader.py",
        "            check_ascending(offsets, range_.topic, range_.partition, reached)\n",
        "",
        ("tests/integration/test_read.py::test_offsets_that_do_not_ascend_are_refused",),
    ),
    Mutant(
        "the auditor takes records that come a second time",
        "audit/log_windows.py",
        "                check_ascending(block.offsets, *topic_partition, place.offset)\n",
        "",
        ("tests/unit/test_log_windows.py::test_offsets_that_do_not_ascend_are_refused",),
    ),
    Mutant(
        "the auditor takes a small log for read when others are too large",
        "audit/log_windows.py",
        "            if place.is_read\n        }",
        "        }",
        ("tests/integration/test_audit_small_logs.py::test_what_is_planted_in_small_logs_is_found",),
    ),
    Mutant(
        "numba compiles the loop over JSON again in a batch",
        "compiled/json_kernel.py",
        "        data.flags.writeable = False\n",
        "",
        ("tests/unit/test_native_consumer.py::test_what_was_tried_and_kept_on_disk_is_what_runs",),
    ),
    Mutant(
        "a numeric keeps groups of zeros at its end",
        "compiled/binary_rows.py",
        "        while whole > 0 and whole % 10000 == 0:",
        "        while False:",
        ("tests/unit/test_json_kernel.py::test_taken",),
    ),
    Mutant(
        "a client ID may break the statistics",
        "kafka/properties.py",
        "_BREAKS_JSON.search(str(value))",
        "False",
        ("tests/unit/test_kafka_client.py::test_a_client_id_that_breaks_the_statistics_is_refused",),
    ),
    Mutant(
        "a large batch in small splits does not take the fast path",
        "batch/rows/row_encoder.py",
        "max(len(task.range), task.slot_offsets)",
        "len(task.range)",
        (
            "tests/unit/test_fast_path_availability.py"
            "::test_a_worker_that_reads_many_splits_loads_the_code_for_all_of_them",
        ),
    ),
    Mutant(
        "an error leaves the consumer to the garbage collector",
        "batch/rows/copy.py",
        "    with closing(rows):",
        "    if True:",
        ("tests/unit/test_copy.py::test_an_error_closes_what_is_read_from",),
    ),
    Mutant(
        "what a callback of the C interface raises is dropped",
        "kafka/native_client.py",
        "            raise raised\n",
        "            pass\n",
        ("tests/unit/test_native_consumer.py::test_what_a_callback_raises_ends_the_read",),
    ),
    Mutant(
        "what no partition is concerned with ends a look behind a window",
        "kafka/client_errors.py",
        "elif concerns_reading(message):",
        "else:",
        ("tests/integration/test_kafka_acls.py::test_a_window_behind_whose_end_is_looked_needs_no_group",),
    ),
    Mutant(
        "a quota is a stall",
        "kafka/reader.py",
        "max(deadline, signals.throttling.until + timeout)",
        "deadline",
        ("tests/integration/test_read.py::test_what_a_quota_holds_back_is_no_stall",),
    ),
    Mutant(
        "a password goes over the line in the clear",
        "kafka/properties.py",
        "    _check_protocol(properties)\n",
        "",
        ("tests/unit/test_kafka_client.py::test_login_or_tls_that_protocol_does_not_have_is_refused",),
    ),
    Mutant(
        "of a property that is given twice the last counts",
        "settings.py",
        "    if len(values) < len(pairs):",
        "    if False:",
        ("tests/unit/test_settings.py::test_a_property_that_is_given_twice_is_named_and_not_dropped",),
    ),
    Mutant(
        "text without a date becomes a time of today",
        "transforms/refused_plan.py",
        "    elif _has(_TIMESTAMP, type_) and not has_format:",
        "    elif False:",
        (
            "tests/integration/test_refused_plan.py::test_what_gives_another_result_each_time_is_refused_by_name",
        ),
    ),
    Mutant(
        "an operator that nobody knows is allowed",
        "transforms/refused_plan.py",
        "            self._note(plan.nodeName(), UNKNOWN)\n",
        "            pass\n",
        (f"{_PLAN}::test_an_operator_that_nobody_knows_is_refused_by_name",),
    ),
    Mutant(
        "a script of Spark is a query",
        "batch/transform/transform_plan.py",
        "            check_query(pipeline, decoded.sparkSession)\n",
        "",
        ("tests/integration/test_transform.py",),
    ),
    Mutant(
        "text within a struct is mended without a word",
        "batch/transform/transform_plan.py",
        'F.when(is_utf8, text).otherwise(F.lit(b"\\xff").cast("string"))',
        "text",
        (
            "tests/integration/test_transform_rows.py::test_value_that_no_table_can_hold_makes_its_record_reject",
        ),
    ),
    Mutant(
        "records that a transform has taken out of the cache are read again",
        "batch/transform/transform_stager.py",
        "            if not self._read.storageLevel.useDisk:",
        "            if False:",
        ("tests/integration/test_transform_rows.py::test_a_transform_may_act_while_it_is_planned",),
    ),
    Mutant(
        "the session that a transform can ask for follows the site",
        "batch/spark/spark_session.py",
        "and F.udf() does.\n        _pin(session, pipeline)\n",
        "and F.udf() does.\n",
        (
            "tests/integration/test_spark_settings_matrix.py::test_the_session_that_a_transform_can_ask_for_is_pinned_too",
        ),
    ),
    Mutant(
        "two batches at a time have two time zones in one process",
        "batch/spark/spark_session.py",
        "        if any(running != variables for running in _running):",
        "        if False:",
        ("tests/unit/test_spark_settings.py::test_batches_at_the_same_time_have_one_zone",),
    ),
    Mutant(
        "a word of a record decides whether it is tried again",
        "batch/spark/spark_errors.py",
        '_QUOTED.sub("", text)',
        "text",
        ("tests/unit/test_spark_settings.py::test_a_record_is_looked_for_only_where_one_may_be_the_cause",),
    ),
    Mutant(
        "an empty line of CSV stands for a value",
        "formats/csv/decoder.py",
        "pc.all(ends, skip_nulls=False)",
        "pc.all(ends)",
        ("tests/unit/test_csv.py::test_empty_line_and_quote_that_next_value_closes_are_not_two_rows",),
    ),
    Mutant(
        "hexadecimal digits in CSV are bytes of bytea",
        "formats/csv/spec.py",
        '            if column.type == "bytea":',
        "            if False:",
        ("tests/unit/test_csv.py::test_what_cannot_be_read_is_refused_at_once",),
    ),
    Mutant(
        "Debezium's infinity is the year 294247",
        "formats/connect/times.py",
        "    infinite = pc.is_in(numbers, pa.array(special, numbers.type))",
        "    infinite = pc.is_in(numbers, pa.array([], numbers.type))",
        (f"{_DEBEZIUM}_refusals.py::test_a_value_that_does_not_fit_its_column_is_a_reject",),
    ),
    Mutant(
        "nanoseconds before 1970 round up",
        "formats/connect/times.py",
        "    return pc.subtract(quotient, is_above.cast(quotient.type))",
        "    return quotient",
        ("tests/unit/test_json_types.py::test_nanoseconds_are_cut_down_to_the_microsecond_before",),
    ),
    Mutant(
        "the time of a moment is lost in a date",
        "formats/connect/times.py",
        "        if not pc.all(pc.equal(pc.multiply(days, _DAY[unit]), numbers), min_count=0).as_py():",
        "        if False:",
        (f"{_DEBEZIUM}_refusals.py::test_a_value_that_does_not_fit_its_column_is_a_reject",),
    ),
    Mutant(
        "Postgres rounds a time that is finer than a microsecond",
        "formats/connect/times.py",
        '    return pc.replace_substring_regex(text, _TOO_FINE, r"\\1")',
        "    return text",
        (f"{_DEBEZIUM}_types.py::test_a_value_arrives_as_the_source_has_it",),
    ),
    Mutant(
        "negative decimals of Debezium are positive",
        "formats/connect/binary_text.py",
        "np.where(decoded[stops - sizes] >= 0x80, 0xFF, 0)",
        "np.where(decoded[stops - sizes] >= 0x80, 0, 0)",
        (f"{_DEBEZIUM}_types.py::test_a_value_arrives_as_the_source_has_it",),
    ),
    Mutant(
        "a field of another name is read by the schema of its column's name",
        "formats/debezium/row_readings.py",
        "row.field(name) for row",
        "row.field(column.name) for row",
        ("tests/unit/test_debezium.py::test_columns_take_fields_of_other_names",),
    ),
    Mutant(
        "Debezium's names of times do not count in Avro",
        "formats/avro/parsed_schema.py",
        "    return from_avro(schema, {}) if str(",
        "    return None if str(",
        ("tests/unit/test_avro.py::test_times_of_debezium_fit_into_times",),
    ),
    Mutant(
        "a time without a schema is refused for nanoseconds",
        "formats/debezium/declared.py",
        "    if column.type in TIMESTAMPS:\n",
        "    if False:\n",
        (f"{_DEBEZIUM}_refusals.py::test_a_value_without_a_schema_is_read_as_declared",),
    ),
    Mutant(
        "decimals without a schema have to be text",
        "formats/debezium/declared.py",
        "        return number_or_text(column)\n",
        "        return plain(column)\n",
        (f"{_DEBEZIUM}_refusals.py::test_a_value_without_a_schema_is_read_as_declared",),
    ),
    Mutant(
        "a number that is too large for a real is infinity",
        "formats/not_finite.py",
        "    refuse_infinity(reals.filter(pc.is_finite(doubles)))\n",
        "",
        (f"{_DEBEZIUM}_refusals.py::test_a_value_that_does_not_fit_its_column_is_a_reject",),
    ),
    Mutant(
        "NaN of a number is text in jsonb",
        "formats/connect/readings.py",
        "        return Reading(None, partial(refuse_in_json, written=written, type_=column.type))\n",
        "        return Reading(None)\n",
        (f"{_DEBEZIUM}_refusals.py::test_a_value_that_does_not_fit_its_column_is_a_reject",),
    ),
    Mutant(
        "a decimal in text is not suspected to be base64",
        "formats/debezium/declared.py",
        "    if not _EITHER_PATTERN.fullmatch(text):\n",
        "    if True:\n",
        (f"{_DEBEZIUM}_refusals.py::test_a_value_without_a_schema_that_needs_a_declaration_is_a_reject",),
    ),
    Mutant(
        "events are read by the schema of another",
        "formats/debezium/envelope.py",
        '        matches = pc.and_(pc.starts_with(values, head), pc.ends_with(values, "}"))',
        '        matches = pc.and_(pc.starts_with(values, head[:50]), pc.ends_with(values, "}"))',
        (f"{_DEBEZIUM}_refusals.py::test_events_of_several_schemas_and_forms_keep_their_order",),
    ),
    Mutant(
        "an interval of Debezium has months of 30.4375 days",
        "formats/connect/readings.py",
        "        return _simple(column, ConnectType(written.type))\n    raise ValueError(",
        "        return _simple(column, ConnectType(written.type))\n    return plain(column)\n    raise ValueError(",
        (f"{_DEBEZIUM}_refusals.py::test_a_value_that_does_not_fit_its_column_is_a_reject",),
    ),
    Mutant(
        "bytes in text are base64 without a declaration",
        "formats/debezium/row_readings.py",
        "        and binary is None\n",
        "        and binary is True\n",
        (f"{_DEBEZIUM}_refusals.py::test_a_value_that_does_not_fit_its_column_is_a_reject",),
    ),
    Mutant(
        "binlog files order as text",
        "formats/debezium/positions.py",
        r"(?P<number>[0-9]{1,18})",
        r"(?P<number>[0-9]{1,6})",
        (f"{_DEBEZIUM}_versions.py::test_versions_order_changes_as_the_source_made_them",),
    ),
    Mutant(
        "a change without its position is older than all others",
        "formats/debezium/positions.py",
        "    values = pc.if_else(pc.and_(is_snapshot, values.is_null()), lowest, values)",
        "    values = pc.if_else(values.is_null(), lowest, values)",
        (f"{_DEBEZIUM}_versions.py::test_a_change_without_its_position_is_a_reject",),
    ),
    Mutant(
        "a snapshot of Oracle is older than the changes that it holds",
        "formats/debezium/positions.py",
        '    commits = pc.if_else(pc.and_(is_snapshot, commits.is_null()), numbers("scn"), commits)\n',
        "",
        (f"{_DEBEZIUM}_versions.py::test_versions_order_changes_as_the_source_made_them",),
    ),
    Mutant(
        "a snapshot of Postgres is newer than changes that it has not seen",
        "formats/debezium/positions.py",
        '    has_no_place = pc.and_(is_snapshot, pc.fill_null(pc.not_equal(source("snapshot"), _INCREMENTAL), True))\n',
        "    has_no_place = pc.and_(is_snapshot, False)\n",
        (f"{_DEBEZIUM}_versions.py::test_rows_of_a_snapshot_of_postgres_have_no_position",),
    ),
    Mutant(
        "the position of a change of Postgres counts before that of its commit",
        "formats/debezium/commit_positions.py",
        '{"commit_lsn": "bigint", "lsn": "bigint"}',
        '{"lsn": "bigint", "commit_lsn": "bigint"}',
        (f"{_POSITIONS}::test_an_insert_that_was_logged_before_the_delete_that_it_waited_for_is_newer",),
    ),
    Mutant(
        "rows of an incremental snapshot of Postgres have no position",
        "formats/debezium/positions.py",
        'pc.fill_null(pc.not_equal(source("snapshot"), _INCREMENTAL), True)',
        "True",
        (
            f"{_DEBEZIUM}_versions.py::test_rows_of_an_incremental_snapshot_of_postgres_have_the_position_of_the_stream",
        ),
    ),
    Mutant(
        "equal versions in two partitions are ordered by place",
        "sinks/upsert/change_order.py",
        "        if not cursor.fetchone()[0]:\n            return False\n",
        "        if not cursor.fetchone()[0] or self.version:\n            return True\n",
        (
            "tests/integration/test_latest_changes.py::test_equal_versions_in_two_partitions_are_refused_whichever_batches_they_are_in",
        ),
    ),
    Mutant(
        "equal versions in two partitions are taken for equal changes",
        "sinks/upsert/change_order.py",
        " and count(distinct {}) > 1",
        " and count(distinct {}) > 9",
        (
            "tests/integration/test_latest_changes.py::test_equal_versions_in_two_partitions_are_refused_whichever_batches_they_are_in",
        ),
    ),
    Mutant(
        "equal changes in two partitions are refused",
        "sinks/upsert/change_order.py",
        ".format(image) if self.version else",
        ".format(image) if False else",
        ("tests/integration/test_latest_changes.py::test_equal_changes_in_two_partitions_have_one_outcome",),
    ),
    Mutant(
        "an earlier change is not compared with one of an equal version in another partition",
        "sinks/upsert/latest_changes.py",
        '{table}, {row} from {earlier}").format(',
        '{table}, {row} from {earlier} where false").format(',
        (
            "tests/integration/test_latest_changes.py::test_equal_versions_in_two_partitions_are_refused_whichever_batches_they_are_in",
        ),
    ),
    Mutant(
        "without a history, equal versions in two partitions of a batch are ordered by place",
        "sinks/upsert/latest_only.py",
        "        if check_ties(cursor, self.staged, self.order, self.target.spec, self._staged_values):\n",
        "        if True:\n",
        (
            "tests/integration/test_without_history.py::test_equal_versions_of_one_batch_are_refused_unless_the_changes_are_equal",
        ),
    ),
    Mutant(
        "without a history, the version of a row or marker in another partition is not compared",
        "sinks/upsert/latest_only.py",
        "        check_ties(cursor, self.staged, self.order, self.target.spec, self._staged_values, stored)\n",
        "",
        (
            "tests/integration/test_without_history.py::test_equal_versions_in_two_partitions_are_refused_unless_the_changes_are_equal",
        ),
    ),
    Mutant(
        "without a history, a marker is not compared with what is staged",
        "sinks/upsert/latest_only.py",
        "            self._check_stored(cursor, self.markers)\n",
        "",
        (
            "tests/integration/test_without_history.py::test_equal_versions_in_two_partitions_are_refused_unless_the_changes_are_equal",
            f"{_POSITIONS}::test_a_deleted_key_whose_positions_went_back_is_noticed",
        ),
    ),
    Mutant(
        "without a history, a row is not compared with a staged delete",
        "sinks/upsert/latest_only.py",
        "            self._check_stored(cursor, self.target)\n            deleted = ",
        "            deleted = ",
        (
            "tests/integration/test_without_history.py::test_equal_versions_in_two_partitions_are_refused_unless_the_changes_are_equal",
            f"{_POSITIONS}::test_positions_that_went_back_are_an_error_until_an_epoch_begins",
        ),
    ),
    Mutant(
        "an Upsert orders changes by a part of their position",
        "sinks/upsert/spec.py",
        "        if {*named} & {*positions} and named[: len(positions)] != positions:\n",
        "        if False:\n",
        (f"{_DEBEZIUM}_versions.py::test_an_upsert_orders_changes_by_the_whole_position",),
    ),
    Mutant(
        "a change that leaves a value out is equal to one that sets null",
        "sinks/upsert/with_history.py",
        "        casts = self.lineage_table.casts(cursor, self.traits.staged_columns(columns))\n",
        "        casts = self.lineage_table.casts(cursor, self.traits.staged_columns(columns)[: len(columns) + 1])\n",
        (
            f"{_UNAVAILABLE}::test_equal_versions_in_two_partitions_one_of_which_leaves_a_value_out_are_refused",
        ),
    ),
    Mutant(
        "a change whose position went back is its own repeat, or that of another one",
        "batch/staging/repeats.py",
        "if offset < self.befores.get(digest, 0):",
        "if digest in self.befores:",
        (
            f"{_POSITIONS}::test_positions_that_went_back_are_an_error_until_an_epoch_begins",
            f"{_POSITIONS}::test_a_repeat_with_another_value_or_of_a_later_record_is_none",
        ),
    ),
    Mutant(
        "positions that went back are not noticed",
        "sinks/upsert/change_order.py",
        "    if places:\n        raise",
        "    if False:\n        raise",
        (f"{_POSITIONS}::test_positions_that_went_back_are_an_error_until_an_epoch_begins",),
    ),
    Mutant(
        "positions that went back within a batch are not noticed",
        "sinks/upsert/change_order.py",
        "kafka_offset from {staged} where kafka_offset < {last}",
        "kafka_offset from {staged} where false",
        (f"{_POSITIONS}::test_positions_that_went_back_are_an_error_until_an_epoch_begins",),
    ),
    Mutant(
        "positions that went back between batches are not noticed",
        "sinks/upsert/change_order.py",
        '"join {relation} c using ({group}) where c.kafka_offset < s.{last} and {is_greater}"',
        '"join {relation} c using ({group}) where false and {is_greater}"',
        (f"{_POSITIONS}::test_positions_that_went_back_are_an_error_until_an_epoch_begins",),
    ),
    Mutant(
        "without a history, positions that went back between batches are not noticed",
        "sinks/upsert/latest_only.py",
        "        check_positions(cursor, self.staged, self.order, table.identifier)\n",
        "",
        (
            f"{_POSITIONS}::test_positions_that_went_back_are_an_error_until_an_epoch_begins",
            f"{_POSITIONS}::test_a_deleted_key_whose_positions_went_back_is_noticed",
        ),
    ),
    Mutant(
        "null is the greatest position",
        "sinks/upsert/change_order.py",
        "coalesce({ours} > {theirs}, {ours} is not null and {theirs} is null)",
        "coalesce({ours} > {theirs}, {ours} is null and {theirs} is not null)",
        (f"{_POSITIONS}::test_positions_that_went_back_are_an_error_until_an_epoch_begins",),
    ),
    Mutant(
        "every change whose position went back is taken for a repeat",
        "batch/staging/repeats.py",
        "            if offset in befores:\n",
        "            if False:\n",
        (
            f"{_POSITIONS}::test_positions_that_went_back_are_an_error_until_an_epoch_begins",
            f"{_POSITIONS}::test_a_repeat_with_another_value_or_of_a_later_record_is_none",
        ),
    ),
    Mutant(
        "a change repeats whichever has its key and position",
        "batch/staging/repeats.py",
        "repr([row[at] for at in compared]).encode()",
        "repr([row[at] for at in shown]).encode()",
        (f"{_POSITIONS}::test_a_repeat_with_another_value_or_of_a_later_record_is_none",),
    ),
    Mutant(
        "no change is found to repeat an earlier one",
        "batch/staging/repeats.py",
        "            self.missing.pop(digest, None)\n",
        "            pass\n",
        (f"{_POSITIONS}::test_changes_that_a_connector_repeats_do_no_harm",),
    ),
    Mutant(
        "the epoch of a position does not order changes",
        "sinks/sink.py",
        "        return (*(column.name for column in self.epoch), *self.version_columns)\n",
        "        return self.version_columns\n",
        (f"{_POSITIONS}::test_positions_that_went_back_are_an_error_until_an_epoch_begins",),
    ),
    Mutant(
        "an epoch begins after its first record",
        "formats/upsert_changes.py",
        'side="right")',
        'side="left")',
        (f"{_POSITIONS}::test_positions_that_went_back_are_an_error_until_an_epoch_begins",),
    ),
    Mutant(
        "changes of a partition that joined later belong to no epoch",
        "formats/upsert_changes.py",
        "epoch.get(partition, 0)",
        "epoch.get(partition, 2**62)",
        (f"{_POSITIONS}::test_changes_of_a_partition_that_was_added_after_an_epoch_began_belong_to_it",),
    ),
    Mutant(
        "an epoch begins at a processed record",
        "operations/new_epoch.py",
        "    if not stored <= begin <= end:\n",
        "    if not begin <= end:\n",
        (
            f"{_POSITIONS}::test_an_epoch_begins_at_no_processed_record_and_only_where_positions_order_changes",
        ),
    ),
    Mutant(
        "an epoch that begins at a time begins at a processed record",
        "operations/new_epoch.py",
        "        return stored if begin is None else max(begin, stored)\n",
        "        return stored if begin is None else begin\n",
        (
            f"{_POSITIONS}::test_an_epoch_begins_at_no_processed_record_and_only_where_positions_order_changes",
        ),
    ),
    Mutant(
        "an epoch begins in one of the pipelines that share a target",
        "operations/new_epoch.py",
        "sorted({pipeline.name, *ledger.registry.find_sharing(pipeline)})",
        "sorted({pipeline.name})",
        (f"{_POSITIONS}::test_an_epoch_begins_in_all_pipelines_that_share_a_target",),
    ),
    Mutant(
        "compaction does not compare the null of the first epoch",
        "sinks/upsert/change_compaction.py",
        '"coalesce({}, 0)" if name == POSITION_EPOCH else "{}"',
        '"{}"',
        (f"{_POSITIONS}::test_a_truncate_deletes_what_is_of_an_earlier_epoch",),
    ),
    Mutant(
        "an insert takes a value that it lacks from the row that its key had before",
        "formats/debezium/decoder.py",
        "        if pc.any(pc.and_not(unavailable.is_valid(), pc.equal(images.op, UPDATE))).as_py():\n",
        "        if False:\n",
        ("tests/unit/test_debezium.py::test_only_an_update_keeps_values_that_were_left_out",),
    ),
    Mutant(
        "whatever has a ts_ms is a heartbeat",
        "formats/debezium/envelope.py",
        "    if event.keys() <= _CLOCKS:\n",
        "    if True:\n",
        ("tests/unit/test_debezium.py::test_a_value_that_only_resembles_such_an_event_is_a_reject",),
    ),
    Mutant(
        "the auditor takes any record without a row for an event that tells of none",
        "audit/rowless.py",
        '            return operation == "m" and isinstance(event.get("message"), dict)',
        "            return bool(operation)",
        (
            "tests/integration/test_debezium_topics.py::test_events_that_tell_of_no_row_are_counted_and_audited",
        ),
    ),
    Mutant(
        "a member of Tables that is registered by name does not join them",
        "cli/register.py",
        "                joined_by=joins,\n",
        "",
        (
            "tests/integration/test_tables_of_topics.py"
            "::test_a_table_that_joins_tables_at_work_starts_at_its_first_record_whatever_registers_it",
        ),
    ),
    Mutant(
        "a replay that overtakes a batch fails the other replay",
        "airflow/operator.py",
        "            if left:\n                raise AirflowFail",
        "            if True:\n                raise AirflowFail",
        (
            "tests/unit/test_tables_dag.py::test_batches_that_later_replays_overtake_meanwhile_do_not_fail_the_task",
        ),
    ),
    Mutant(
        "a replay of many tables goes on without a table that a retry could plan",
        "airflow/tasks/plan_batch.py",
        "if is_repetition and has_tries and any(",
        "if False and any(",
        (
            "tests/integration/test_tables_tasks.py::test_a_replay_that_one_table_misses_is_tried_again_and_then_says_how_to_repeat_it",
        ),
    ),
    Mutant(
        "a table that cannot be made any more stops all others",
        "batch/process_batches.py",
        "            return Outcome(batch, error=error)\n",
        "            raise\n",
        ("tests/integration/test_tables_tasks.py::test_a_table_that_cannot_be_made_any_more_stops_no_other",),
    ),
    Mutant(
        "a report of many tables waits for Kafka once for each",
        "airflow/tasks/report_batch.py",
        "                break  # the others would wait in vain\n",
        "                continue\n",
        ("tests/integration/test_tables_tasks.py::test_a_report_of_all_tables_waits_once_for_kafka",),
    ),
    Mutant(
        "a topic whose table has the name of a registered one takes its place",
        "tables.py",
        "kept = [topic for topic in members if topic in registered]",
        "kept = list(members)[:1]",
        ("tests/unit/test_tables_definition.py::test_topics_with_one_name_do_not_concern_the_others",),
    ),
    Mutant(
        "a slice of an audit reads all coverage",
        "audit/located_rows.py",
        '            "and exactbatch.log_key(pipeline, topic_id, partition) = "\n'
        '            "exactbatch.log_key({pipeline}, {topic_id}::uuid, {partition}) order by lower(offsets)"\n',
        '            "order by lower(offsets)"\n',
        ("tests/integration/test_query_plans.py::test_a_slice_of_an_audit_reads_its_own_coverage",),
    ),
    Mutant(
        "of the changes of a key, the audit keeps the latest of the newest window",
        "audit/latest_values.py",
        "(table {changes} union all table earlier)",
        "(table {changes})",
        (
            "tests/integration/test_audit_without_history.py"
            "::test_the_audit_finds_every_row_that_is_not_the_latest_change_in_the_log",
        ),
    ),
    Mutant(
        "a target that is the changes of another is not found beside it",
        "ledger/definition.py",
        "table.removesuffix(suffix)",
        "table",
        (
            "tests/integration/test_growth.py"
            "::test_a_check_of_one_pipeline_reads_the_registrations_that_may_share_its_tables",
        ),
    ),
    Mutant(
        "an audit counts only the batches of pipelines that spell the target alike",
        "sinks/ledger_conditions.py",
        "then array_prepend('public', parts) else parts end",
        "then parts else parts end",
        (f"{_AGGREGATE}::test_revisions_by_a_pipeline_that_spells_the_target_otherwise_are_possible",),
    ),
    Mutant(
        "the headroom of a partition that does not answer is the whole retention",
        "operations/metrics.py",
        "    if lag.unanswered:\n        return None\n",
        "",
        (
            "tests/unit/test_metrics.py"
            "::test_headroom_is_not_known_while_no_partition_says_what_its_oldest_record_is",
        ),
    ),
    Mutant(
        "the longest retention of a connection blurs that of each topic",
        "airflow/page/brokers.py",
        "now - min(2 * ages[each[0]], now - _FIRST_TIME)",
        "now - min(2 * max(ages.values()), now - _FIRST_TIME)",
        ("tests/unit/test_page_caches.py::test_the_retention_of_one_topic_does_not_blur_that_of_another",),
    ),
    Mutant(
        "NaN is printed as it is",
        "cli/console.py",
        "_finite(value), sys.stdout",
        "value, sys.stdout",
        ("tests/unit/test_printed_json.py::test_numbers_that_json_lacks_are_strings",),
    ),
    Mutant(
        "doctor goes on with the next pipeline, however many do not answer",
        "operations/doctor/examine.py",
        "        if left <= 0:\n",
        "        if False:\n",
        (
            "tests/integration/test_doctor.py"
            "::test_pipelines_are_left_when_others_have_taken_the_time_of_a_check",
        ),
    ),
    Mutant(
        "a pipeline is on time while a partition does not answer",
        "operations/lag.py",
        "self.at, is_known=not self.unanswered)",
        "self.at)",
        (
            "tests/unit/test_metrics.py"
            "::test_a_pipeline_is_not_on_time_while_a_partition_does_not_say_what_its_oldest_record_is",
        ),
    ),
    Mutant(
        "the page keeps idle connections to a server that has lost one",
        "airflow/page/databases.py",
        "            if connection.closed:\n",
        "            if False:\n",
        (
            "tests/integration/test_page_routes.py"
            "::test_when_postgres_has_restarted_one_request_fails_at_most",
        ),
    ),
    Mutant(
        "names are taken for markup",
        "cli/table_layout.py",
        "        title=escape(title),",
        "        title=title,",
        ("tests/integration/test_command_line.py::test_names_are_no_markup",),
    ),
    Mutant(
        "an attempt that another has preceded commits its rows, too",
        "batch/staging/stage_partition.py",
        "        if enter_split(cursor, stage.tables, staged):\n",
        "        if enter_split(cursor, stage.tables, staged) or True:\n",
        (f"{_BY_BATCH}::test_an_attempt_that_loses_the_race_rolls_its_rows_back",),
    ),
    Mutant(
        "a later attempt copies a split that is in the table",
        "batch/staging/stage_partition.py",
        "    if earlier is None:\n        bind_transaction(",
        "    if True:\n        bind_transaction(",
        (f"{_BY_BATCH}::test_a_late_attempt_reads_nothing",),
    ),
    Mutant(
        "splits of a future partition are not compared",
        "batch/staging/staged_splits.py",
        "    if found != expected:\n",
        "    if len(found) != len(expected):\n",
        (f"{_BY_BATCH}::test_splits_that_are_not_those_reported_are_not_published",),
    ),
    Mutant(
        "attempts that Spark has given up may still write into a future partition",
        "batch/staging/staged_splits.py",
        "                cursor.execute(_END_ATTEMPTS, (rows.as_string(cursor),))\n",
        "",
        (f"{_BY_BATCH}::test_an_attempt_that_spark_has_given_up_does_not_hold_up_publish",),
    ),
    Mutant(
        "rows are copied into a column of another type",
        "sinks/by_batch/parent.py",
        "        if not column.type == column.staged_type == stored[column.name].type:\n",
        "        if column.type != column.staged_type:\n",
        (f"{_BY_BATCH}::test_rows_that_cannot_be_attached_are_inserted",),
    ),
    Mutant(
        "attached rows pass by the triggers of the target",
        "sinks/by_batch/parent.py",
        "    if triggers := name_triggers(table.facts(cursor)):\n",
        "    if (triggers := name_triggers(table.facts(cursor))) and False:\n",
        (f"{_BY_BATCH}::test_rows_that_cannot_be_attached_are_inserted",),
    ),
    Mutant(
        "attached rows never reach subscribers",
        "sinks/by_batch/parent.py",
        "    for name, *_ in publications(cursor, table):\n",
        "    for name, *_ in ():\n",
        (f"{_BY_BATCH}::test_rows_that_cannot_be_attached_are_inserted",),
    ),
    Mutant(
        "Postgres scans a partition to attach it",
        "sinks/by_batch/staged_partition.py",
        "        create_like(cursor, self.target, table, build_bound(self._partition))\n",
        "        create_like(cursor, self.target, table, sql.SQL('constraint {} check (true)').format(BOUND))\n",
        (f"{_BY_BATCH}::test_attach_adopts_constraint_and_indexes_without_a_scan",),
    ),
    Mutant(
        "indexes of a partition are built while it is attached",
        "sinks/by_batch/staged_partition.py",
        "        build_indexes(cursor, self.target, table)\n",
        "",
        (f"{_BY_BATCH}::test_attach_adopts_constraint_and_indexes_without_a_scan",),
    ),
    Mutant(
        "a replay of a part drops the whole partition",
        "batch/publishing/publish.py",
        "        dropped = sorted({*replaced} - {*remaining})\n",
        "        dropped = replaced\n",
        (f"{_BY_BATCH}::test_a_replay_of_a_part_deletes_rows_and_the_rest_remains",),
    ),
    Mutant(
        "a replay leaves the rows of a partition that it cannot drop",
        "sinks/by_batch/layout.py",
        "        if batch_ids:\n",
        "        if False:\n",
        (f"{_BY_BATCH}::test_a_replay_deletes_where_a_reader_keeps_the_partition",),
    ),
    Mutant(
        "an audit takes partitions that came after its snapshot for wrong",
        "sinks/tables/lineage_table.py",
        "        if not self.is_attached:\n",
        "        if True:\n",
        (f"{_BY_BATCH}::test_an_audit_that_began_before_a_batch_does_not_see_it",),
    ),
    Mutant(
        "an open partition belongs to the login that opened it",
        "sinks/by_batch/staged_partition.py",
        "    give_to_owner(cursor, target, partition)\n    attach(",
        "    attach(",
        (f"{_BY_BATCH}::test_each_partition_belongs_to_the_owner_of_the_target",),
    ),
    Mutant(
        "a merged partition belongs to the login that merged",
        "sinks/by_batch/merge.py",
        "        give_to_owner(cursor, self.target, merged)\n",
        "",
        (f"{_MERGE}::test_a_merged_partition_belongs_to_the_owner_of_the_target",),
    ),
    Mutant(
        "a publish waits for the partitions of a target that it has locked",
        "sinks/tables/target.py",
        "lock table only {} in share update exclusive mode",
        "lock table only {0} in row exclusive mode; lock table only {0} in share update exclusive mode",
        (
            f"{_BY_BATCH}"
            "::test_a_replay_that_drops_a_partition_and_another_pipeline_publish_one_after_the_other",
        ),
    ),
    Mutant(
        "a merge needs more locks than the server has",
        "sinks/by_batch/merge.py",
        "            or len(group.partitions) == MOST_DROPPED\n",
        "",
        (
            "tests/unit/test_merged_partitions.py"
            "::test_a_transaction_exchanges_100_partitions_at_most_and_the_next_merge_goes_on",
        ),
    ),
    Mutant(
        "a merge overwrites what a replay did meanwhile",
        "sinks/by_batch/merge.py",
        "        return members if tuple(each.name for each in members) == group.partitions else None\n",
        "        return members\n",
        (f"{_MERGE}::test_partitions_that_changed_since_the_plan_are_left",),
    ),
    Mutant(
        "rows of partitions change while a merge copies them",
        "sinks/by_batch/merge.py",
        "in share row exclusive mode",
        "in access share mode",
        (f"{_MERGE}::test_nobody_deletes_rows_that_a_merge_has_copied",),
    ),
    Mutant(
        "a server with other code runs a client's tasks",
        "batch/engines/connect_task.py",
        "    if code_identity() != identity:\n",
        "    if False:\n",
        ("tests/unit/test_connect_task.py::test_a_worker_with_other_code_runs_nothing",),
    ),
    Mutant(
        "executors with other code decode records",
        "batch/spark/executors.py",
        "        if (refused := other_code(identity)) is not None:\n",
        "        if (refused := None) is not None:\n",
        ("tests/integration/test_executor_code.py::test_executors_with_other_code_are_refused",),
    ),
    Mutant(
        "executors with other code decode records for a transform",
        "batch/transform/decoded_records.py",
        "attempt, refused = attempt_id(), other_code(identity)\n",
        "attempt, refused = attempt_id(), None\n",
        ("tests/integration/test_executor_code.py::test_executors_with_other_code_are_refused",),
    ),
    Mutant(
        "executors with other code decode records for a transform in one pass",
        "batch/transform/decoded_records.py",
        "        refused = other_code(identity)\n",
        "        refused = None\n",
        ("tests/integration/test_executor_code.py::test_executors_with_other_code_are_refused",),
    ),
    Mutant(
        "executors with other code audit",
        "audit/workers.py",
        "        if (refused := other_code(identity)) is not None:\n",
        "        if (refused := None) is not None:\n",
        ("tests/integration/test_audit_workers.py::test_executors_with_other_code_audit_nothing",),
    ),
    Mutant(
        "a worker of a server lives on, with old functions",
        "batch/engines/connect_task.py",
        '    if os.environ.get("SPARK_REUSE_WORKER"):\n',
        "    if False:\n",
        ("tests/unit/test_connect_task.py::test_a_worker_that_would_live_on_runs_nothing",),
    ),
    Mutant(
        "hash() differs from one worker of a server to the next",
        "batch/engines/connect_task.py",
        '    if os.environ.get("PYTHONHASHSEED") != variables["PYTHONHASHSEED"]:\n',
        "    if False:\n",
        ("tests/unit/test_connect_task.py::test_a_worker_with_another_seed_of_hash_runs_nothing",),
    ),
    Mutant(
        "a Spark Connect server runs a transform that nobody has checked",
        "batch/engines/connect_url.py",
        "    if pipeline.is_transformed:\n",
        "    if False:\n",
        ("tests/unit/test_connect_operator.py",),
    ),
    Mutant(
        "workers of a cluster have the daemon of the driver's packages",
        "batch/spark/python_daemon.py",
        "        and is_local(settings)\n",
        "",
        (_DAEMON,),
    ),
    Mutant(
        "a daemon has other packages than --py-files",
        "batch/spark/python_daemon.py",
        "        and not has_other_code\n",
        "",
        (_DAEMON,),
    ),
    Mutant(
        "a daemon of any Python has the driver's packages",
        "batch/spark/python_daemon.py",
        "Path(found).parent == own.parent and own.samefile(found)",
        "own.samefile(found)",
        (_DAEMON,),
    ),
    Mutant(
        "a daemon takes its PySpark for Spark's",
        "batch/engines/worker_daemon.py",
        "packages.intersection(Path(entry).parents) and Path(entry).is_file()",
        "Path(entry).is_file()",
        (_DAEMON,),
    ),
    Mutant(
        "all workers draw the same random numbers",
        "batch/engines/worker_daemon.py",
        "    os.register_at_fork(after_in_child=np.random.seed)\n",
        "",
        ("tests/integration/test_spark_start.py::test_workers_of_one_daemon_draw_different_random_numbers",),
    ),
    Mutant(
        "a batch adds a variable to an environment that another one reads",
        "batch/spark/python_daemon.py",
        "LOADS_COMPILED_CODE in context.environment and ",
        "",
        (_DAEMON,),
    ),
    Mutant(
        "a daemon loads compiled code for small ranges",
        "batch/spark/python_daemon.py",
        " and is_worth_compiling(slot_offsets, reload=True)",
        "",
        (_DAEMON,),
    ),
    Mutant(
        "the archive of another Java is used",
        "batch/spark/class_archive.py",
        'f"{spark} {java} {java.stat().st_mtime_ns}"',
        'f"{spark}"',
        ("tests/unit/test_class_archive.py",),
    ),
    Mutant(
        "the auditor takes any batch for a folded one",
        "audit/offset_sets.py",
        "            is_misplaced[suspects] = ~self._is_folded(batches[suspects])\n",
        "            is_misplaced[suspects] = False\n",
        (_PRUNE,),
    ),
    Mutant(
        "a replay that is planned between two portions does not stop a prune",
        "operations/prune.py",
        "    if folded.ranges and (replay := folding.find_planned_replay(pipeline, folded.ranges)) is not None:\n",
        "    if (replay := folding.find_planned_replay(pipeline, ())) is not None:\n",
        (_PRUNE,),
    ),
    Mutant(
        "a prune does not compare the offsets that are covered before and after",
        "operations/prune.py",
        "    if folded.before != folded.after or deleted != sum(portion.values()):\n",
        "    if deleted != sum(portion.values()):\n",
        (_PRUNE,),
    ),
    Mutant(
        "folded results do not fence a replay that was planned before the newest of them",
        "batch/publishing/fences.py",
        "        newest = covered.batch_id or covered.newest_batch_id\n",
        "        newest = covered.batch_id\n",
        (_PRUNE,),
    ),
    Mutant(
        "a replay of whole batches publishes over folded ones",
        "batch/publishing/publish.py",
        "    _check_not_pruned(pipeline, batch, covered)\n",
        "",
        (_PRUNE,),
    ),
    Mutant(
        "a replay of whole batches is planned over folded ones",
        "planning/replay.py",
        "        _check_not_pruned(wanted, coverage)\n",
        "",
        (_PRUNE,),
    ),
    Mutant(
        "a replay leaves folded batches whole",
        "ledger/queries/batches.sql",
        "and pruned = 'whole';",
        "and pruned = 'none';",
        (_PRUNE,),
    ),
    Mutant(
        "a replay takes back rows of another pipeline's folded batches",
        "ledger/queries/batches.sql",
        "where batch_id = any(:batch_ids::bigint[]) and pipeline = :pipeline and pruned is not null",
        "where batch_id = any(:batch_ids::bigint[]) and :pipeline is not null and pruned is not null",
        (_PRUNE,),
    ),
    Mutant(
        "a batch that an asset event is still to announce is folded",
        "ledger/queries/pruning.sql",
        "  and (b.announced_at is not null or b.dag_id is null)\n",
        "",
        (_PRUNE,),
    ),
    Mutant(
        "a prune leaves an overtaken replay planned",
        "operations/prune.py",
        "                ledger.batches.supersede_replay(replay)\n",
        "                pass\n",
        (_PRUNE,),
    ),
    Mutant(
        "a replay of whole batches leaves out what they cover elsewhere",
        "ledger/covered_offsets.py",
        "        rows = {*touched, *read_rows(Covered, of_batches)}\n",
        "        rows = {*touched}\n",
        (_REPLAY,),
    ),
    Mutant(
        "a COPY of encoded rows is not counted",
        "batch/rows/copy.py",
        "    if stored != sent:",
        "    if False:",
        ("tests/integration/test_fast_path.py::test_a_copy_of_which_postgres_stores_less_is_an_error",),
    ),
    Mutant(
        "the last rows of a small batch stay in the encoder",
        "batch/rows/copy.py",
        "return data + rest[: -len(_TRAILER)] if len(rest) > len(_TRAILER) else data",
        "return data",
        (
            "tests/integration/test_fast_path.py::test_a_batch_of_spark_tasks_says_how_many_records_compiled_code_took",
        ),
    ),
    Mutant(
        "an array of timestamptz names the type timestamp",
        "batch/rows/copy.py",
        " + _TIMESTAMPTZ + ",
        " + data[at + 8 : at + 12] + ",
        ("tests/unit/test_copy.py::test_an_array_names_the_type_of_its_elements",),
    ),
    Mutant(
        "a refused row of a partition has the offset of the row after it",
        "batch/staging/stage_partition.py",
        "np.concatenate(self._offsets)[row - 1]",
        "np.concatenate(self._offsets)[row]",
        (f"{_BY_BATCH}::test_a_refusal_names_the_record_on_either_path",),
    ),
    Mutant(
        "what a COPY of a range has stored is not compared",
        "batch/by_partition/range_copy.py",
        "rows == sent == stored == done.inserted",
        "rows == sent == done.inserted",
        (f"{_FAST_RANGES}::test_a_row_that_a_trigger_replaces_is_noticed",),
    ),
    Mutant(
        "a row of a range that the target refuses is an unknown error",
        "batch/by_partition/range_copy.py",
        "        if not is_refusal(error.pgcode):\n            raise\n        raise TargetMismatch(",
        "        if True:\n            raise\n        raise TargetMismatch(",
        (f"{_FAST_RANGES}::test_a_refusal_is_the_same_error_on_both_paths",),
    ),
    Mutant(
        "rejects of a range are not kept",
        "batch/by_partition/range_copy.py",
        "copy_batches(cursor, REJECTS, REJECT_SCHEMA, iter(rejects))",
        "copy_batches(cursor, REJECTS, REJECT_SCHEMA, iter(rejects[:-1]))",
        (f"{_FAST_RANGES}::test_both_paths_write_the_same_rows_and_rejects",),
    ),
    Mutant(
        "compiled code takes a field that is given twice",
        "compiled/json_rows.py",
        " or (column >= 0 and cells[column, STATE] != MISSING):",
        ":",
        ("tests/unit/test_json_kernel.py",),
    ),
    Mutant(
        "compiled code calls a document with a name given twice checked",
        "compiled/json_nested.py",
        "                    if hashes[other] == hash_:",
        "                    if False:",
        ("tests/unit/test_checked_json.py",),
    ),
    Mutant(
        "compiled code compares names with escapes as they are written",
        "compiled/json_nested.py",
        "                is_unique = not has_escapes and top < len(hashes)",
        "                is_unique = top < len(hashes)",
        ("tests/unit/test_checked_json.py",),
    ),
    Mutant(
        "compiled code goes on in an object without the names before its members' objects",
        "compiled/json_nested.py",
        "                first = np.int64(hashes[top])\n",
        "                first = top\n",
        ("tests/unit/test_checked_json.py",),
    ),
    Mutant(
        "compiled code opens an object for which it has no memory of names",
        "compiled/json_nested.py",
        "                is_unique = top < len(hashes)\n                if is_unique:",
        "                if top < len(hashes):",
        ("tests/unit/test_checked_json.py",),
    ),
    Mutant(
        "tasks stage documents as text although there is a second column",
        "batch/job.py",
        "                direct.stage_into(tables)\n",
        "",
        ("tests/integration/test_documents.py",),
    ),
    Mutant(
        "a staging table gets more columns than Postgres allows",
        "sinks/tables/lineage_table.py",
        "[:free]",
        "",
        ("tests/integration/test_documents.py",),
    ),
    Mutant(
        "compiled code calls a document of any size checked",
        "compiled/json_rows.py",
        "    if is_checked and stop - start <= _U(MOST_CHECKED):",
        "    if is_checked:",
        ("tests/unit/test_checked_json.py",),
    ),
    Mutant(
        "rows are inserted without the documents that are checked",
        "sinks/staged_rows.py",
        '                return sql.SQL("coalesce({}, {})").format(sql.Identifier(checked.name), cast.expression)',
        "                return cast.expression",
        ("tests/integration/test_documents.py",),
    ),
    Mutant(
        "documents are staged as jsonb for targets of any type",
        "sinks/tables/lineage_table.py",
        '            and target.type == "jsonb"\n',
        "",
        ("tests/integration/test_documents.py",),
    ),
    Mutant(
        "documents are staged as jsonb although checks read their text",
        "batch/job.py",
        "if direct is not None and not pipeline.row_checks and isinstance",
        "if direct is not None and isinstance",
        ("tests/integration/test_documents.py",),
    ),
    Mutant(
        "documents are stored as the server's default says",
        "sinks/tables/lineage_table.py",
        'f"jsonb {target.storage}"',
        '"jsonb"',
        ("tests/integration/test_documents.py",),
    ),
    Mutant(
        "compiled code takes an integer out of range",
        "compiled/json_rows.py",
        "        if number < columns[column, LOW] or number > columns[column, HIGH]:",
        "        if False:",
        ("tests/unit/test_json_kernel.py",),
    ),
    Mutant(
        "compiled code takes bytes that are no UTF-8",
        "compiled/json_rows.py",
        "    return at == end and (combined < 128 or is_utf8(buffer, start, end))",
        "    return at == end",
        ("tests/unit/test_json_kernel.py",),
    ),
    Mutant(
        "compiled code forgets that a known name has bytes above 127",
        "compiled/json_rows.py",
        "np.uint8(last[field, _NAME_BITS])",
        "np.uint8(0)",
        ("tests/unit/test_json_kernel.py",),
    ),
    Mutant(
        "compiled code takes a row without its key",
        "compiled/json_rows.py",
        "            or _lacks_required(cells, columns)\n",
        "",
        ("tests/unit/test_json_kernel.py",),
    ),
    Mutant(
        "compiled code takes half a surrogate pair",
        "compiled/strings.py",
        "    if code < 0xDC00 or code > 0xDFFF:\n        return end\n",
        "",
        ("tests/unit/test_json_kernel.py",),
    ),
    Mutant(
        "compiled code rounds a real twice",
        "compiled/numbers.py",
        " or (bits & _REST_OF_REAL) == _MIDDLE_OF_REAL:",
        ":",
        ("tests/unit/test_json_kernel.py",),
    ),
    Mutant(
        "columns that are read from compiled rows lose the sign of numerics",
        "compiled/rows_arrow.py",
        "-scaled if is_negative else scaled",
        "scaled",
        ("tests/unit/test_json_kernel.py",),
    ),
    Mutant(
        "columns that are read from compiled rows have 0 or an empty text for null",
        "compiled/rows_arrow.py",
        "is_null = lengths < 0",
        "is_null = lengths < -1",
        ("tests/unit/test_json_kernel.py",),
    ),
    Mutant(
        "a transform gets records in another order than that of the log",
        "batch/rows/json_loop.py",
        "np.argsort(kept)",
        "np.arange(len(kept))",
        (
            "tests/integration/test_fast_path.py::test_both_paths_give_a_transform_the_same_records_and_stage_its_rows",
        ),
    ),
    Mutant(
        "a transform rejects other records than those that do not decode",
        "batch/rows/json_loop.py",
        "int(taken.declined_indexes[index])",
        "index",
        (
            "tests/integration/test_fast_path.py::test_both_paths_give_a_transform_the_same_records_and_stage_its_rows",
        ),
    ),
    Mutant(
        "a transform loses the records that compiled code declines",
        "batch/rows/json_loop.py",
        "others = decode_by_format(records.take(taken.declined_indexes.tolist()))",
        "others = decode_by_format(records.take([]))",
        (
            "tests/unit/test_fast_decoder.py::test_records_that_the_loop_declines_are_decoded_among_the_others",
        ),
    ),
    Mutant(
        "columns that rows have as they are reach the transform as nulls",
        "batch/transform/transform_stager.py",
        "used = columns.used.union(sent, place)",
        "used = columns.used.union(place)",
        ("tests/integration/test_json_members.py::test_a_transform_gets_a_row_for_each_element",),
    ),
    Mutant(
        "columns that a projection computes something with reach it as nulls",
        "transforms/narrow_plan.py",
        "                used |= _references(computed)\n",
        "",
        ("tests/integration/test_one_pass.py::test_columns_of_records_are_traced",),
    ),
    Mutant(
        "a projection that computes is taken for one that does not",
        "transforms/spark_plan.py",
        "return bool(projection.outputSet().subsetOf(projection.child().outputSet()))",
        "return True",
        (
            "tests/integration/test_one_pass.py::test_columns_of_records_are_traced",
            "tests/integration/test_transform.py",
        ),
    ),
    Mutant(
        "columns of other records take the place of those with their number",
        "transforms/narrow_plan.py",
        "dict(zip(places, items(by.output()), strict=True))",
        "dict(zip(sorted(places), items(by.output()), strict=True))",
        ("tests/integration/test_one_pass.py::test_rows_are_computed_from_other_records",),
    ),
    Mutant(
        "compiled code survives a change of its sources",
        "compiled/compiler.py",
        '        digest.update(source.name.encode() + b"\\0" + source.read_bytes())\n',
        "        pass\n",
        ("tests/unit/test_fast_path_availability.py::test_another_source_has_another_directory",),
    ),
    Mutant(
        "refused bodies of Avro are decoded one by one",
        "formats/avro/decoder.py",
        "            return decode_present(values, body.decode, body.find_refused)\n",
        "            return decode_present(values, body.decode)\n",
        ("tests/unit/test_refused_at_once.py::test_bodies_of_avro_are_not_decoded_one_by_one",),
    ),
    Mutant(
        "a PySpark in a zip file is not looked at",
        "batch/spark/pyspark_packages.py",
        "isinstance(spec.loader, FileLoader | zipimporter)",
        "isinstance(spec.loader, FileLoader)",
        (
            "tests/unit/test_pyspark_packages.py"
            "::test_another_version_that_is_on_the_path_before_the_package_is_refused",
        ),
    ),
    Mutant(
        "refused messages of Protobuf are decoded one by one",
        "formats/protobuf/decoder.py",
        "        messages: dict[int, tuple[Any, _Type]] = {}\n",
        "        messages: dict[int, tuple[Any, _Type]] = {}\n        return\n",
        ("tests/unit/test_refused_at_once.py::test_bad_values_are_not_decoded_one_by_one",),
    ),
    Mutant(
        "text of a message without rows is refused in a block",
        "formats/protobuf/decoder.py",
        "yield indexes[place if origins is None else origins[place]], reason",
        "yield indexes[place], reason",
        ("tests/unit/test_refused_at_once.py::test_text_is_refused_in_rows_only",),
    ),
    Mutant(
        "refused events of Avro are decoded one by one",
        "formats/debezium/decoder.py",
        "        yield from self._refused_avro_events(events, readings, found)\n",
        "",
        ("tests/unit/test_refused_at_once.py::test_events_of_avro_are_not_decoded_one_by_one",),
    ),
    Mutant(
        "values that are alike are checked one by one",
        "formats/decoder.py",
        "index if alike is None else alike(value)",
        "index",
        ("tests/unit/test_refused_at_once.py::test_values_that_are_alike_are_checked_once",),
    ),
    Mutant(
        "zeros before an integer of CSV count as its digits",
        "formats/refused_text.py",
        'text.lstrip("-").lstrip("0")',
        'text.lstrip("-")',
        ("tests/unit/test_refused_at_once.py::test_a_line_of_csv_has_a_reason_exactly_if_arrow_refuses_it",),
    ),
    Mutant(
        "a quote of CSV ends its field",
        "formats/csv/decoder.py",
        "lines[-1].append((field + rest[0], quoted is not None))",
        "lines[-1].append((field or rest[0], quoted is not None))",
        ("tests/unit/test_refused_at_once.py::test_a_line_of_csv_has_a_reason_exactly_if_arrow_refuses_it",),
    ),
    Mutant(
        "the schemas of all first fields of an Avro record are made for one bad body",
        "formats/avro/decoder.py",
        "numbers = range(len(self._names))",
        "numbers = [n for n in range(len(self._names)) if self._first_fields(n)]",
        ("tests/unit/test_avro_bounds.py::test_the_reason_of_a_body_needs_few_schemas",),
    ),
    Mutant(
        "dates that Postgres cannot store are good in a bad block",
        "formats/postgres_limits.py",
        "pc.or_(pc.less(days, EARLIEST_DATE), pc.greater(days, LATEST_DATE))",
        "pc.less(days, EARLIEST_DATE)",
        ("tests/unit/test_refused_at_once.py::test_what_postgres_cannot_store_is_found_in_every_type",),
    ),
    Mutant(
        "PySpark with files of pyspark-client is used",
        "batch/spark/pyspark_packages.py",
        "            yield file\n",
        "            yield from ()\n",
        ("tests/unit/test_pyspark_packages.py",),
    ),
    Mutant(
        "a version of Spark that no test has tried is used",
        "batch/spark/pyspark_packages.py",
        "        if find_minor_version(found) not in SUPPORTED:\n",
        "        if False:\n",
        ("tests/unit/test_pyspark_packages.py::test_another_version_is_refused",),
    ),
    Mutant(
        "a server of another version of Spark is used",
        "batch/engines/connect_engine.py",
        "            if find_minor_version(version := session.version) != find_minor_version(pyspark.__version__):\n",
        "            if (version := session.version) is None:\n",
        ("tests/integration/test_connect.py::test_a_server_with_other_code_is_refused",),
    ),
    Mutant(
        "a replay of a compacted topic loses the row that a reject left",
        "planning/freeze_replay.py",
        "        check_without_rejects(in_compacted, ledger.rejects.find_batches(pipeline, in_compacted))\n",
        "",
        (
            "tests/integration/test_replay.py"
            "::test_a_compacted_topic_with_rejects_is_not_replayed_from_the_beginning",
        ),
    ),
    Mutant(
        "the audit keeps each replaced change of a key until its end",
        "audit/latest_values.py",
        "if self._dead > self._keys:",
        "if False:",
        (
            "tests/integration/test_audit_without_history.py"
            "::test_the_fold_of_many_changes_of_few_keys_stays_small",
        ),
    ),
    Mutant(
        "a row that another pipeline wrote last is reported",
        "audit/latest_comparison.py",
        '        "or (f.{batch} is distinct from r.{batch} and coalesce(r.{writer}, $1) = $1) "\n',
        '        "or f.{batch} is distinct from r.{batch} "\n',
        (
            "tests/integration/test_audit_without_history.py"
            "::test_a_row_that_another_pipeline_over_the_topic_wrote_last_is_right",
        ),
    ),
    Mutant(
        "a token with a slash is a path",
        "airflow/tasks/process_on_server.py",
        '    return server + separator + parameters.replace("/", "%2F")\n',
        "    return server + separator + parameters\n",
        ("tests/unit/test_connect_operator.py::test_the_url_is_the_one_of_the_provider",),
    ),
    Mutant(
        "a message shows the token of a URL that is wrong",
        "batch/engines/connect_engine.py",
        "        except (PySparkException, ValueError):\n",
        "        except (PySparkException, ValueError) as error:\n"
        "            raise ConfigurationError(_reason(error)) from error\n",
        ("tests/unit/test_connect_engine.py::test_an_error_about_a_url_does_not_repeat_the_token",),
    ),
    Mutant(
        "a bad range on a server of Spark Connect ends the others",
        "batch/engines/connect_engine.py",
        "            return loaded(list(chain.from_iterable(accepted)))\n",
        "            return loaded(chain.from_iterable(accepted))\n",
        ("tests/unit/test_connect_engine.py::test_an_error_of_one_range_lets_the_others_end",),
    ),
    Mutant(
        "each session has its own Python daemon, which the server keeps",
        "batch/engines/connect_server.py",
        'ARTIFACT_ISOLATION: "false"',
        'ARTIFACT_ISOLATION: "true"',
        ("tests/integration/test_connect.py::test_workers_are_forked_by_one_daemon_and_end_with_their_task",),
    ),
    Mutant(
        "a forwarder believes the ledger, not the topic",
        "forwarding/forward.py",
        "        return newest.sequence\n",
        "        return stream.sent_sequence\n",
        (f"{_FORWARD}::test_what_the_last_forwarder_could_not_record_is_found_behind_messages_of_others",),
    ),
    Mutant(
        "results of a lost batch pass for those of the ledger",
        "forwarding/forward.py",
        "        if plan != newest.plan_id:\n",
        "        if False:\n",
        (f"{_FORWARD}::test_a_restored_database_is_noticed_before_anything_is_sent",),
    ),
    Mutant(
        "messages of another stream count as sent",
        "forwarding/sent.py",
        "    if headers.get(STREAM) != stream.encode():\n",
        "    if STREAM not in headers:\n",
        (f"{_FORWARD}::test_messages_of_others_in_the_topic_are_passed_over",),
    ),
    Mutant(
        "a gap in the outbox is passed over",
        "forwarding/forward.py",
        "            or [each.sequence for each in results] != expected\n",
        "",
        (f"{_FORWARD}::test_a_row_that_is_missing_in_the_outbox_is_noticed",),
    ),
    Mutant(
        "what another forwarder has sent and deleted is taken for lost",
        "ledger/streams.py",
        "        _check_own(stream, row is not None)\n",
        "",
        (f"{_FORWARD}::test_what_another_forwarder_has_sent_and_deleted_is_not_taken_for_lost",),
    ),
    Mutant(
        "init changes where results go while a batch is published",
        "ledger/registry.py",
        "        _QUERIES.lock_pipeline(self._connection, pipeline=pipeline.name)\n        if registered is None",
        "        if registered is None",
        (f"{_FORWARD}::test_a_stream_is_not_changed_while_a_batch_is_published",),
    ),
    Mutant(
        "a transaction of results that failed is sent again as it was",
        "forwarding/forward.py",
        "self._results = max(1, min(failed, self._results) // 2)",
        "self._results = max(1, min(failed, self._results))",
        (f"{_FORWARD}::test_a_transaction_that_failed_is_followed_by_smaller_ones",),
    ),
    Mutant(
        "an aggregate with wider groups is compared in the types of its results",
        "sinks/aggregate/audit.py",
        'sql.SQL("{0}::{1} as {0}").format(sql.Identifier(name), sql.SQL(types[name]))',
        'sql.SQL("{0}").format(sql.Identifier(name), sql.SQL(types[name]))',
        (f"{_AGGREGATE}::test_a_target_with_wider_types_is_exact_with_a_trigger_too",),
    ),
    Mutant(
        "rejects of decoding hide that a record gives two changes of a key",
        "batch/staging/uncastable.py",
        "        and staged.rejected - rejected_before <= limit\n",
        "        and staged.rejected <= limit\n",
        (
            "tests/integration/test_upsert.py"
            "::test_two_changes_of_a_key_in_a_record_are_refused_however_many_rejects_there_are",
        ),
    ),
    Mutant(
        "a sample is read through a consumer that takes its records with it",
        "kafka/range_consumer.py",
        "    can_be_native = partitions == 1 and not keeps_records and",
        "    can_be_native = partitions == 1 and",
        ("tests/integration/test_try.py::test_a_broken_record_is_named",),
    ),
    Mutant(
        "a topic of results is created again while they are sent, and has more messages than before",
        "forwarding/forward.py",
        "            if first < next_offsets.get(partition, 0):\n",
        "            if last < next_offsets.get(partition, 0):\n",
        (f"{_FORWARD}::test_a_topic_that_is_created_again_while_results_are_sent_is_noticed",),
    ),
    Mutant(
        "a topic of results that was created again is taken for the earlier one",
        "forwarding/forward.py",
        "not may_be_same(self._stream.topic, known, topic_id)",
        "False",
        (f"{_FORWARD}::test_a_topic_that_is_created_again_while_results_are_sent_is_noticed",),
    ),
    Mutant(
        "results that retention has removed from the topic were never sent",
        "forwarding/forward.py",
        "            if stream.attempted_sequence is not None and state.lost:\n",
        "            if False:\n",
        (f"{_FORWARD}::test_results_that_retention_may_have_removed_are_not_sent_again",),
    ),
    Mutant(
        "a topic of results whose end was lost has all that were sent",
        "forwarding/forward.py",
        "            if each.last_stable < known:\n",
        "            if False:\n",
        (f"{_FORWARD}::test_a_topic_whose_end_was_lost_is_refused_before_anything_is_sent",),
    ),
    Mutant(
        "an open transaction hides what a topic has",
        "forwarding/sent.py",
        "        if not held:\n",
        "        if True:\n",
        (f"{_FORWARD}::test_an_open_transaction_of_others_holds_a_forwarder_back",),
    ),
    Mutant(
        "a replay sends each row that it writes again",
        "batch/publishing/outbox.py",
        '    "where place > case when removed then written else removals end"\n',
        '    "where place > 0"\n',
        (f"{_FORWARD}::test_a_replay_that_has_fewer_of_equal_rows_retracts_the_difference",),
    ),
    Mutant(
        "the first state of a row in a batch is sent, not the last",
        "batch/publishing/outbox.py",
        "order by key, number desc",
        "order by key, number",
        (f"{_FORWARD}::test_updates_of_windows_and_their_finality_are_sent",),
    ),
    Mutant(
        "partitions that a replay drops are not retracted in the topic",
        "batch/publishing/publish.py",
        "    if isinstance(writer, AttachesPartitions) and pipeline.forward is None:\n",
        "    if isinstance(writer, AttachesPartitions):\n",
        (f"{_FORWARD}::test_a_target_that_is_partitioned_by_batch_is_forwarded_and_corrected",),
    ),
    Mutant(
        "results that a trigger swallows are not missed",
        "batch/publishing/outbox.py",
        "            if cursor.rowcount != results:\n",
        "            if False:\n",
        (f"{_FORWARD}::test_a_trigger_that_swallows_results_fails_the_batch",),
    ),
    Mutant(
        "messages about one row have several keys",
        "batch/publishing/outbox.py",
        "            if not has_one_image(stored[name].type):\n",
        "            if False:\n",
        (f"{_FORWARD}::test_a_key_whose_equal_values_look_different_is_refused",),
    ),
    Mutant(
        "what retention removed of an added partition is skipped",
        "planning/advance.py",
        "                offset = _stored(partition, 0)\n",
        "                offset = _stored(partition, partition.earliest)\n",
        ("tests/unit/test_planner.py::test_what_retention_has_removed_of_a_new_partition_is_lost",),
    ),
    Mutant(
        "a server that refuses the token is asked for ten minutes",
        "local/stack.py",
        "        session.client.set_retry_policies([])\n",
        "",
        ("tests/unit/test_local_connect.py::test_a_server_whose_port_another_process_has_is_not_up",),
    ),
    Mutant(
        "a port that another stack took is not known for what it is",
        "local/server.py",
        '_IN_USE = ("address already in use", "failed to bind to address")',
        '_IN_USE = ("address already in use",)',
        ("tests/unit/test_local_connect.py::test_a_server_that_could_not_bind_its_port_may_have_another",),
    ),
    Mutant(
        "the Postgres of tests lets in who does not know its password",
        "local/postgres.py",
        '"--auth=scram-sha-256"',
        '"--auth=trust"',
        (f"{_PIPELINE_TESTS}::test_only_this_account_and_who_knows_the_password_can_connect",),
    ),
    Mutant(
        "a replay in a test of a pipeline keeps what was loaded before",
        "testing/in_postgres.py",
        "        writer.drop_batches(cursor, dropped)\n",
        "        pass\n",
        (f"{_PIPELINE_TESTS}::test_batches_and_a_replay_of_each_sink[by_batch]",),
    ),
    Mutant(
        "the audit finds no key whose changes in two partitions have one version",
        "audit/unordered_changes.py",
        "group by {of_ranked} having count(*) > 1",
        "group by {of_ranked} having count(*) > 2",
        (
            f"{_AUDIT_ORDER}::test_changes_with_one_version_in_two_partitions_are_unordered_if_they_are_the_latest",
        ),
    ),
    Mutant(
        "the fold of an audit does not look at the partition of a change with the same version",
        "audit/latest_values.py",
        "        if len(self._partitions) < 2:\n",
        "        if len(self._partitions) < 3:\n",
        (
            f"{_AUDIT_ORDER}::test_changes_with_one_version_in_two_partitions_are_unordered_if_they_are_the_latest",
        ),
    ),
    Mutant(
        "an audit takes older changes with one version for the latest",
        "audit/latest_comparison.py",
        "from {ties} t join {fold} f on {key_of_tie}{version_of_tie}), ",
        "from {ties} t join {fold} f on {key_of_tie}), ",
        (
            f"{_AUDIT_ORDER}::test_changes_with_one_version_in_two_partitions_are_unordered_if_they_are_the_latest",
        ),
    ),
    Mutant(
        "the audit does not know that a position went back",
        "audit/unordered_changes.py",
        "where {rank} < {most} and {times} = 1",
        "where {rank} < {most} and {times} = 0",
        (
            f"{_AUDIT_ORDER}::test_positions_that_go_back_in_a_partition_are_found_unless_they_repeat_earlier_ones",
        ),
    ),
    Mutant(
        "the audit takes a repetition for a position that went back",
        "audit/unordered_changes.py",
        "where {rank} < {most} and {times} = 1",
        "where {rank} < {most}",
        (
            f"{_AUDIT_ORDER}::test_positions_that_go_back_in_a_partition_are_found_unless_they_repeat_earlier_ones",
        ),
    ),
    Mutant(
        "the audit compares a position with the one before it alone",
        "audit/unordered_changes.py",
        'order by kafka_offset rows between unbounded "',
        'order by kafka_offset rows between 1 "',
        (
            f"{_AUDIT_ORDER}::test_positions_that_go_back_in_a_partition_are_found_unless_they_repeat_earlier_ones",
        ),
    ),
    Mutant(
        "the audit judges positions below the horizon of compaction",
        "audit/unordered_changes.py",
        '            "and c.kafka_offset >= l.horizon)"\n',
        '            ")"\n',
        (f"{_AUDIT_ORDER}::test_changes_below_the_horizon_of_compaction_say_nothing_about_positions",),
    ),
    *(
        Mutant(
            f"the audit does not compare the {part} of a reject",
            "audit/rejected_records.py",
            old,
            new,
            (f"{_AUDIT_REJECTS}::test_a_reject_that_differs_from_its_record_is_found[append]",),
        )
        for part, old, new in (
            ("key", "key != found_key", "False"),
            ("value", "value != found_value", "False"),
            ("headers", "json.loads(headers_as_json(headers)) != json.loads(found_headers)", "False"),
            ("reason", "reason is not None and reason != (found_reason := printable(found_reason))", "False"),
        )
    ),
    Mutant(
        "an audit takes a row without lineage for one from before the pipeline",
        "audit/latest_comparison.py",
        "when r.kafka_topic is null and {is_complete} then 'foreign' ",
        "when r.kafka_topic is null and {is_complete} then 'unknown' ",
        (f"{_AUDIT_REJECTS}::test_a_row_without_lineage_is_not_exact_if_the_log_has_every_change",),
    ),
    Mutant(
        "an audit holds a row without lineage against a log that does not have every change",
        "audit/latest_comparison.py",
        "            each.from_offset == 0\n",
        "            each.from_offset >= 0\n",
        (f"{_AUDIT_REJECTS}::test_a_row_without_lineage_is_not_exact_if_the_log_has_every_change",),
    ),
    Mutant(
        "an audit compares values of types that a batch refuses",
        "audit/check_access.py",
        '        check_castable(cursor, table, columns, exact=traits.lineage == "batch")\n',
        "        pass\n",
        (f"{_AUDIT_TYPES}::test_an_audit_refuses_a_type_exactly_if_a_batch_does",),
    ),
)


def main(
    only: Annotated[str, typer.Option(help="mutants whose name this regular expression finds")] = "",
    check: Annotated[bool, typer.Option(help="only see whether each of them can be made")] = False,
    together: Annotated[int, typer.Option(help="mutants to test at the same time", min=1)] = 4,
) -> None:
    """Make and test mutants, and print the tests that noticed."""
    console = Console(highlight=False)
    mutants = [each for each in MUTANTS if re.search(only, each.name)]
    if check:
        for each in mutants:
            broken(each)
        console.print(f"{len(mutants)} mutants can be made")
        return
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tests = list(dict.fromkeys(test for each in mutants for test in each.tests))
        console.print(f"{len(tests)} tests or files over the program as it is …")
        red, said = run(_copy(Path(folder) / "sound"), tests, "-n", str(together), "--no-loadscope-reorder")
        if said is not None:
            console.print(said, markup=False)
            console.print("[bold red]the suite must be green before a mutant tells anything[/]")
            raise typer.Exit(1)
        console.print("green\n\n| broken | goes red |\n| --- | --- |")

        def tested(number: int) -> tuple[list[str], str | None]:
            copy = _copy(Path(folder) / str(number))
            each = mutants[number]
            (copy / "jobs" / "exactbatch" / each.file).write_text(broken(each))
            result = run(copy, each.tests, "-x")
            shutil.rmtree(copy)
            return result

        survived = 0
        with ThreadPoolExecutor(together) as pool:
            for each, (red, said) in zip(mutants, pool.map(tested, range(len(mutants))), strict=True):
                survived += not red
                seen = ", ".join(f"`{test.rpartition('::')[2]}`" for test in red)
                console.print(escape(f"| {each.name} | {seen or '**nothing**'} |"), soft_wrap=True)
                if not red and said is not None:
                    console.print(said, markup=False)
    verdict = "every one was seen" if not survived else f"{survived} were not seen"
    console.print(f"\n{len(mutants)} mutants: {verdict}")
    raise typer.Exit(1 if survived else 0)


def broken(mutant: Mutant) -> str:
    """The text of the mutant's file. Raises ValueError unless there is exactly one place to break."""
    text = (ROOT / "jobs" / "exactbatch" / mutant.file).read_text()
    if (found := text.count(mutant.old)) != 1:
        raise ValueError(f"{mutant.name}: expected its text once in {mutant.file}, found it {found} times")
    return text.replace(mutant.old, mutant.new)


def run(copy: Path, tests: Sequence[str], *options: str) -> tuple[list[str], str | None]:
    """The tests that failed, and what pytest printed if it did not end well.

    What cannot even be collected or set up does not count: it would prove nothing. Tests that crash the interpreter
    count as one that failed.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rf", *_OPTIONS, *options, *tests],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy / "jobs"), "EXACTBATCH_HOME": str(HOME)},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return [], f"expected the tests to end within {_TIMEOUT_S} s"
    red = re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    if done.returncode in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
        red = [tests[0]]
    return [re.sub(r"\[.*", "", each) for each in red], None if done.returncode == 0 else done.stdout[-3000:]


def _copy(folder: Path) -> Path:
    """The program, its tests and the pages that they read; the working tree is never touched."""
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for each in ("jobs", "tests", "docs"):
        shutil.copytree(ROOT / each, folder / each, ignore=leave)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


if __name__ == "__main__":
    typer.run(main)
