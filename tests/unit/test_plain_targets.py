"""Into which targets rows are inserted before the pipeline is locked."""

import pytest

from exactbatch.batch.staging.task import Staged, StagedBatch
from exactbatch.offsets import OffsetRange
from exactbatch.postgres.catalog import Fact, is_plain
from support.staged_batches import ID

PLAIN = (
    Fact("kind", "public.t", "", "r"),
    Fact("column", "public.t", "id", "integer not null"),
    Fact("constraint", "public.t", "positive", "CHECK ((id > 0))"),
    Fact("trigger", "public.t", "off", "disabled"),
)


def test_a_target_is_plain_if_a_row_can_be_inserted_without_regard_to_others():
    assert is_plain(PLAIN)


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("trigger", "CREATE TRIGGER log AFTER INSERT ON public.t FOR EACH ROW EXECUTE FUNCTION log() O"),
        ("rule", "CREATE RULE r AS ON INSERT TO public.t DO ALSO NOTHING; O"),
        ("unique index", "CREATE UNIQUE INDEX t_id ON public.t USING btree (id)"),
        ("constraint", "PRIMARY KEY (id)"),
        ("constraint", "EXCLUDE USING gist (id WITH =)"),
        ("constraint", "FOREIGN KEY (id) REFERENCES u(id)"),
        ("foreign key from elsewhere", "FOREIGN KEY (t) REFERENCES t(id)"),
    ],
)
def test_a_target_is_not_plain_if_others_decide(what, value):
    assert not is_plain([*PLAIN, Fact(what, "public.t", "x", value)])


def test_a_batch_is_divided_by_the_tables_of_its_task_attempts():
    pieces = [Staged(OffsetRange("t", at, 0, 10, ID), at // 2, 10, 8 - at, 1, 1) for at in range(4)]
    whole = StagedBatch.of(pieces)
    assert whole.by_part() == [(None, whole)]
    batch = StagedBatch.of(pieces, {0: 5, 1: 3})
    parts = dict(batch.by_part())
    assert set(parts) == {5, 3}
    assert parts[5].rows == {0: 15}
    assert parts[3].rows == {1: 11}
    assert parts[3].pieces == tuple(pieces[2:])
    assert parts[3].rejected == 2
