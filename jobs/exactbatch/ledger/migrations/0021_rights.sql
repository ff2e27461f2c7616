-- Who may write what: logins for some pipelines only, transactions for one pipeline only, locks that only a job can
-- take, and a past that truncate does not remove either.

create table exactbatch.login_pipeline (
    login           text not null,
    pipeline        text not null,
    primary key (login, pipeline)
);
comment on table exactbatch.login_pipeline is
    'A pipeline, or Tables, that a login may write. A login that is in no row may write all pipelines.';

-- Unlogged: after a crash, no transaction is open.
create unlogged table exactbatch.bound_transaction (
    xid             xid8 not null,
    begun_at        timestamptz not null,
    pipeline        text not null,
    primary key (xid, begun_at)
);
comment on table exactbatch.bound_transaction is
    'An open transaction that writes to a target, and the only pipeline whose rows it may write. Later transactions delete the rows of those that have ended.';
comment on column exactbatch.bound_transaction.begun_at is
    'When the transaction began. In a restored database, later transactions have the same numbers.';

create function exactbatch.bind_transaction(pipeline text) returns void
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    bound text;
begin
    select b.pipeline into bound from exactbatch.bound_transaction b
    where b.xid = pg_current_xact_id() and b.begun_at = now();
    if not found then
        delete from exactbatch.bound_transaction where ctid = any(array(
            select b.ctid from exactbatch.bound_transaction b where b.xid < pg_snapshot_xmin(pg_current_snapshot())
            order by b.xid limit 10 for update skip locked
        ));
        insert into exactbatch.bound_transaction values (pg_current_xact_id(), now(), bind_transaction.pipeline);
    elsif bound <> bind_transaction.pipeline then
        raise 'this transaction writes for pipeline %, so it can not write for %', bound, bind_transaction.pipeline
            using errcode = 'EX001';
    end if;
end $$;
comment on function exactbatch.bind_transaction is
    'Lets this transaction write rows of one pipeline only, until it ends. Nothing can undo this: code of the target''s owner runs in the transaction, as the job''s login.';

create function exactbatch.check_writer() returns trigger
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    names text[];
    bound text;
    foreign_pipeline text;
begin
    if tg_table_name = 'pipeline' then
        select array_agg(distinct w.name) into names from written w;
    elsif tg_table_name in ('batch_range', 'batch_failure') then
        select array_agg(distinct b.pipeline) into names
        from (select distinct w.batch_id from written w) w join exactbatch.batch b using (batch_id);
    elsif tg_table_name = 'outbox' then
        -- Results of a stream that does not exist belong to no pipeline, and a later stream may get its number.
        select array_agg(distinct coalesce(f.pipeline, '')) into names
        from (select distinct w.stream_id from written w) w left join exactbatch.forward f using (stream_id);
    else
        select array_agg(distinct w.pipeline) into names from written w;
    end if;
    if names is null then
        return null;
    end if;
    select b.pipeline into bound from exactbatch.bound_transaction b
    where b.xid = pg_current_xact_id() and b.begun_at = now();
    select name into foreign_pipeline from unnest(names) name where name <> bound limit 1;
    if found then
        raise 'this transaction writes for pipeline %, and something in it, such as a trigger, a default or a check of the target, writes rows of pipeline % into exactbatch.%',
            bound, foreign_pipeline, tg_table_name using errcode = 'EX001';
    end if;
    -- The login of the session: code that sets another role, or a function with the rights of its owner, keeps it.
    select name into foreign_pipeline from unnest(names) name
    where exists (select from exactbatch.login_pipeline l where l.login = session_user)
      and not exists (
          select from exactbatch.login_pipeline l
          where l.login = session_user and (l.pipeline = name or starts_with(name, l.pipeline || '.'))
      )
    limit 1;
    if found then
        raise 'login % may not write rows of pipeline % into exactbatch.%', session_user, foreign_pipeline, tg_table_name
            using errcode = 'EX002';
    end if;
    return null;
end $$;
comment on function exactbatch.check_writer is
    'Refuses rows of pipelines that this transaction, or this login, does not write.';

-- One check for each statement, whatever number of rows it writes; and an error, where a policy would hide the rows.
do $$
declare
    name text;
begin
    foreach name in array array['pipeline', 'stored_offset', 'batch', 'batch_range', 'coverage', 'rejected_record',
                                'time_boundary', 'batch_failure', 'run_life', 'empty_run', 'joined_topic', 'forward',
                                'outbox'] loop
        execute format('create trigger writer_inserts after insert on exactbatch.%I referencing new table as written '
                       'for each statement execute function exactbatch.check_writer()', name);
        execute format('create trigger writer_updates after update on exactbatch.%I referencing old table as written '
                       'for each statement execute function exactbatch.check_writer()', name);
        execute format('create trigger writer_deletes after delete on exactbatch.%I referencing old table as written '
                       'for each statement execute function exactbatch.check_writer()', name);
    end loop;
end $$;

-- An advisory lock can be taken by every login that may connect, and pg_locks shows everybody its key. Rows of this
-- table can be locked only by take_lock().
create table exactbatch.named_lock (name text primary key);
comment on table exactbatch.named_lock is
    'What transactions lock that is no row of the ledger: the target of several pipelines, and all registrations.';

create function exactbatch.take_lock(name text) returns void
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    key constant bigint := hashtextextended(name, 0);
    holders text;
begin
    loop
        perform from exactbatch.named_lock l where l.name = take_lock.name for update;
        exit when found;
        insert into exactbatch.named_lock values (take_lock.name) on conflict do nothing;
    end loop;
    -- It excludes nobody: it shows others which session has the row.
    perform pg_try_advisory_xact_lock_shared(key);
exception when lock_not_available then
    -- Anybody may prevent that advisory lock; then all sessions that have a named lock come into question.
    with sessions as (
        select distinct l.pid, exists (
            select from pg_locks a where a.pid = l.pid and a.locktype = 'advisory' and a.granted and a.objsubid = 1
              and a.mode = 'ShareLock' and (a.classid::bigint << 32 | a.objid::bigint) = key) as has_it
        from pg_locks l
        where l.relation = 'exactbatch.named_lock'::regclass and l.granted and l.pid <> pg_backend_pid()
    )
    select string_agg(format('login %s (pid %s, application %s)', a.usename, a.pid, a.application_name), ' or ')
    into holders
    from sessions s join pg_stat_activity a using (pid)
    where s.has_it or not exists (select from sessions where has_it);
    raise lock_not_available using message =
        format('the lock %s is held by %s', take_lock.name, coalesce(holders, 'a session that has ended'));
end $$;
comment on function exactbatch.take_lock is
    'Locks a name until the transaction ends. If lock_timeout passes, the error names the login, the process and the application that have the lock.';

create function exactbatch.try_lock(name text) returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10ms' as $$
begin
    perform exactbatch.take_lock(try_lock.name);
    return true;
exception when lock_not_available then
    return false;
end $$;
comment on function exactbatch.try_lock is
    'Locks a name as take_lock() does, or returns false if another transaction has the lock.';

create or replace function exactbatch.refuse_change_of_the_past() returns trigger
    language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    kept record := new;
begin
    if tg_op = 'UPDATE' and tg_table_name in ('batch', 'stored_offset') and pg_trigger_depth() > 1 then
        -- The foreign key cascades, because the pipeline was renamed.
        kept.pipeline := old.pipeline;
    end if;
    -- One `if` inside the other: PL/pgSQL looks up every field that a condition names.
    if tg_table_name = 'batch' then
        if old.status <> 'planned' then
            if tg_op = 'UPDATE' then
                if old.announced_at is null then
                    kept.announced_at := null;
                end if;
                if old.pruned is null or old.pruned = 'whole' and new.pruned = 'part' then
                    kept.pruned := old.pruned;
                end if;
                if kept is not distinct from old then
                    return new;
                end if;
            end if;
            raise 'batch % is %: its row can not be changed any more', old.batch_id, old.status
                using errcode = 'restrict_violation';
        end if;
        if tg_op = 'UPDATE' and new.pruned is not null then
            raise 'batch % is planned: it can not be pruned', old.batch_id using errcode = 'restrict_violation';
        end if;
    elsif tg_table_name = 'batch_range' then
        if (select status <> 'planned' and (tg_op <> 'DELETE' or pruned is null)
            from exactbatch.batch where batch_id = old.batch_id) then
            raise 'batch % is not planned: its ranges can not be changed any more', old.batch_id
                using errcode = 'restrict_violation';
        end if;
    elsif tg_op = 'DELETE' then
        raise 'the stored offset % of %[%] can not be deleted', old.next_offset, old.topic, old.partition
            using errcode = 'restrict_violation';
    elsif kept.next_offset < old.next_offset
          or (kept.pipeline, kept.topic, kept.partition, kept.topic_id, kept.first_offset)
             is distinct from (old.pipeline, old.topic, old.partition, old.topic_id, old.first_offset) then
        raise 'the stored offset % of %[%] can only move forward', old.next_offset, old.topic, old.partition
            using errcode = 'restrict_violation';
    end if;
    return case tg_op when 'DELETE' then old else new end;
end $$;
drop trigger past on exactbatch.stored_offset;
create trigger past before update or delete on exactbatch.stored_offset
    for each row execute function exactbatch.refuse_change_of_the_past();

create function exactbatch.refuse_truncate() returns trigger
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise 'exactbatch.% has a history: it can not be truncated', tg_table_name using errcode = 'restrict_violation';
end $$;
comment on function exactbatch.refuse_truncate is 'Triggers for each row do not see a truncate.';
do $$
declare
    name text;
begin
    foreach name in array array['pipeline', 'stored_offset', 'batch', 'batch_range', 'coverage', 'rejected_record',
                                'time_boundary', 'replay_horizon', 'position_epoch', 'batch_failure', 'run_life',
                                'empty_run', 'joined_topic', 'forward', 'outbox', 'schema_version',
                                'login_pipeline'] loop
        execute format('create trigger history before truncate on exactbatch.%I '
                       'for each statement execute function exactbatch.refuse_truncate()', name);
    end loop;
end $$;
