"""If more records are uncastable than a batch may reject, nothing else is looked for in their rows."""

from types import SimpleNamespace

import pytest

from exactbatch.batch.staging import uncastable
from exactbatch.ledger import ledger as session


@pytest.mark.parametrize(("noted", "searched"), [(3, 1), (4, 0)])
def test_unknown_values_are_not_looked_for_among_too_many_uncastable_rows(
    connection, monkeypatch, noted, searched
):
    searches = []
    monkeypatch.setattr(uncastable, "list_rules", lambda *_: ["a rule"])
    monkeypatch.setattr(uncastable, "note_uncastable", lambda *_, **__: noted)
    monkeypatch.setattr(uncastable, "note_unavailable", lambda *each, **__: searches.append(each))
    monkeypatch.setattr(uncastable, "is_any_noted", lambda *_: False)
    monkeypatch.setattr(session, "bind_transaction", lambda *_: None)
    staged = SimpleNamespace(rejected=0, has_several_rows_of_a_record=False)
    tables = SimpleNamespace(batch_id=1)
    given = {"tables": tables, "columns": (), "ranges": (), "staged": staged, "limit": 3, "settings": None}
    assert uncastable.reject_uncastable(connection, None, None, **given) is staged
    assert len(searches) == searched
