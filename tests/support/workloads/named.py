"""Workloads in which the newer of two changes of a key has the smaller position in the write-ahead log.

An insert, and an update that changes the key, write their row before they check the key. If the row that has the key is
changed and not committed, the check waits, and that other transaction goes on to write.
"""

from typing import Final

# The rows {one} and {two} exist; {free} does not. A session is named by a letter.
WORKLOADS: Final = {
    "insert while an update and a delete are under way": """
        a: begin; a: update {table} set note = 'closing' where id = {one};
        b: begin; b: insert into {table} values ({one}, 'new');
        a: delete from {table} where id = {one}; a: commit; b: commit
    """,
    "insert while an insert and a delete are under way": """
        a: begin; a: insert into {table} values ({free}, 'lock of a');
        b: begin; b: insert into {table} values ({free}, 'lock of b');
        a: delete from {table} where id = {free}; a: commit; b: commit
    """,
    "insert while an update and a change of the key are under way": """
        a: begin; a: update {table} set note = 'moving' where id = {one};
        b: begin; b: insert into {table} values ({one}, 'new');
        a: update {table} set id = {free}, body = 'short' where id = {one}; a: commit; b: commit
    """,
    "insert while a delete, an insert and a delete are under way": """
        a: begin; a: delete from {table} where id = {one}; a: insert into {table} values ({one}, 'again');
        b: begin; b: insert into {table} values ({one}, 'new');
        a: delete from {table} where id = {one}; a: commit; b: commit
    """,
    "change of a key while an update and a delete are under way": """
        a: begin; a: update {table} set note = 'closing' where id = {one};
        b: begin; b: update {table} set id = {one}, body = 'short' where id = {two};
        a: delete from {table} where id = {one}; a: commit; b: commit
    """,
    "insert while an update and a delete are prepared": """
        a: begin; a: update {table} set note = 'closing' where id = {one};
        b: begin; b: insert into {table} values ({one}, 'new');
        a: delete from {table} where id = {one}; a: prepare transaction 'workload'; a: commit prepared 'workload';
        b: commit
    """,
    "insert while changes after a savepoint are under way": """
        a: begin; a: savepoint before; a: delete from {table} where id = {one}; a: rollback to before;
        a: update {table} set note = 'closing' where id = {one};
        b: begin; b: savepoint before; b: insert into {table} values ({one}, 'new');
        a: delete from {table} where id = {one}; a: commit; b: release before; b: commit
    """,
}
# Only a deferrable key lets an insert go on without a lock.
DEFERRABLE: Final = {
    "insert before a delete, with a key that is checked at the commit": """
        b: begin; b: insert into {table} values ({one}, 'new');
        a: begin; a: delete from {table} where id = {one}; a: commit; b: commit
    """,
}
# Those whose positions are in the order of the commits.
CONTROLS: Final = {
    "insert while a delete is under way": """
        a: begin; a: delete from {table} where id = {one};
        b: begin; b: insert into {table} values ({one}, 'new'); a: commit; b: commit
    """,
    "upsert while an update and a delete are under way": """
        a: begin; a: update {table} set note = 'closing' where id = {one};
        b: begin; b: insert into {table} values ({one}, 'new') on conflict (id) do update set note = 'updated';
        a: delete from {table} where id = {one}; a: commit; b: commit
    """,
}
