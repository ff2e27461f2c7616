-- The past of the ledger does not change: what is committed or superseded stays, and offsets move forward only.

create function exactbatch.refuse_change_of_the_past() returns trigger language plpgsql as $$
begin
    -- One `if` inside the other: PL/pgSQL looks up every field that a condition names.
    if tg_table_name = 'batch' then
        if old.status <> 'planned' then
            raise 'batch % is %: its row can not be changed any more', old.batch_id, old.status
                using errcode = 'restrict_violation';
        end if;
    elsif tg_table_name = 'batch_range' then
        if (select status <> 'planned' from exactbatch.batch where batch_id = old.batch_id) then
            raise 'batch % is not planned: its ranges can not be changed any more', old.batch_id
                using errcode = 'restrict_violation';
        end if;
    elsif new.next_offset < old.next_offset
          or (new.pipeline, new.topic, new.partition, new.topic_id)
             is distinct from (old.pipeline, old.topic, old.partition, old.topic_id) then
        raise 'the stored offset % of %[%] can only move forward', old.next_offset, old.topic, old.partition
            using errcode = 'restrict_violation';
    end if;
    return case tg_op when 'DELETE' then old else new end;
end $$;
comment on function exactbatch.refuse_change_of_the_past is
    'Whatever writes to the ledger, by mistake or by hand: what is done stays as it was done.';

create trigger past before update or delete on exactbatch.batch
    for each row execute function exactbatch.refuse_change_of_the_past();
create trigger past before update or delete on exactbatch.batch_range
    for each row execute function exactbatch.refuse_change_of_the_past();
create trigger past before update on exactbatch.stored_offset
    for each row execute function exactbatch.refuse_change_of_the_past();
