-- The roles of a deployment. Run this script in the database: once before the first `exactbatch migrate`, and again
-- after each that upgrades the ledger. Repeated runs are harmless. It needs a superuser or, where there is
-- none, as on managed Postgres, the login that owns the database and has CREATEROLE: the same login each time, which
-- becomes a member of exactbatch_owner.
--
--   exactbatch_owner     owns the ledger; runs `exactbatch migrate`, `register`, `compact`, `prune`, `boundaries --forget`
--   exactbatch_job       plans, processes and replays; for the login of Airflow's connection postgres_default
--   exactbatch_reader    reads status, rejects and audits; writes nothing
--   exactbatch_reporter  reads the views for dashboards (docs/dashboards.md), and no table: no contents of records
--
-- These roles cannot log in. Create logins as members: create role airflow login in role exactbatch_job;
-- A login of exactbatch_job writes all pipelines. For one that writes some only, with the tables of Tables of such a name:
--   create role shop_job login in role exactbatch_job;
--   insert into exactbatch.login_pipeline values ('shop_job', 'orders'), ('shop_job', 'invoices');
-- Code of whoever owns a target runs as the job's login: give the pipelines of each owner a login (docs/security.md).
--
-- This script grants nothing on targets. Grant on their schemas and tables:
--   to exactbatch_job     usage on the schema, and create if it is to create missing targets there;
--                         select, insert, update and delete on the targets
--                         for a target with layout="by_batch", membership in the role that owns it
--   to exactbatch_reader  usage on the schema, and select on the targets

-- Nothing here runs a function or operator that somebody else has created in a schema of this login's path.
set search_path = pg_catalog, pg_temp;

do $$
declare name text;
begin
    foreach name in array array['exactbatch_owner', 'exactbatch_job', 'exactbatch_reader', 'exactbatch_reporter'] loop
        if to_regrole(name) is null then
            begin
                execute format('create role %I nologin', name);
            exception when duplicate_object or unique_violation then
                null; -- the script runs in another database at the same time: roles belong to the whole server
            end;
        end if;
    end loop;
    -- Only members of a role may give it something. A superuser needs no membership.
    if current_setting('is_superuser') = 'off' then
        grant exactbatch_owner to current_user;
    end if;
    execute format('grant connect, create on database %I to exactbatch_owner', current_database());
    execute format('grant connect, temporary on database %I to exactbatch_job', current_database());
    execute format('grant connect on database %I to exactbatch_reader, exactbatch_reporter', current_database());
end $$;

create schema if not exists exactbatch authorization exactbatch_owner;
create schema if not exists exactbatch_staging authorization exactbatch_owner;
grant usage on schema exactbatch to exactbatch_job, exactbatch_reader, exactbatch_reporter;
-- Only the job may access staging tables: they hold rows before they are published.
grant usage, create on schema exactbatch_staging to exactbatch_job;
revoke all on schema exactbatch, exactbatch_staging from public;

do $$
declare statement text;
begin
    if to_regclass('exactbatch.pipeline_state') is null then
        raise notice 'There is no ledger yet, or an older one: run this script again after `exactbatch migrate`.';
        return;
    end if;
    -- To take what a login has created, this one must be its member, too.
    for statement in
        select distinct format('grant %s to current_user', relowner::regrole)
        from pg_class
        where relnamespace = 'exactbatch'::regnamespace and not pg_has_role(relowner, 'usage')
    loop
        execute statement;
    end loop;
    -- What a login has created belongs to the role, so that any member can migrate and prune it.
    for statement in
        select format('alter %s %s owner to exactbatch_owner', case relkind when 'v' then 'view' else 'table' end,
                      oid::regclass)
        from pg_class
        where relnamespace = 'exactbatch'::regnamespace and relkind in ('r', 'p', 'v')
          and relowner <> 'exactbatch_owner'::regrole
        union all
        select format('alter function %s owner to exactbatch_owner', oid::regprocedure)
        from pg_proc
        where pronamespace = 'exactbatch'::regnamespace and proowner <> 'exactbatch_owner'::regrole
        union all
        select format('alter schema %I owner to exactbatch_owner', nspname)
        from pg_namespace
        where nspname in ('exactbatch', 'exactbatch_staging') and nspowner <> 'exactbatch_owner'::regrole
    loop
        execute statement;
    end loop;
    grant select on all tables in schema exactbatch to exactbatch_job, exactbatch_reader;
    -- The views read the tables with the rights of their owner.
    grant select on exactbatch.pipeline_state, exactbatch.batch_history, exactbatch.open_batches,
        exactbatch.partition_state to exactbatch_reporter;
    -- Locking a row of pipeline requires the right to update one of its columns. This one identifies nothing.
    grant update (registered_at) on exactbatch.pipeline to exactbatch_job;
    grant insert on exactbatch.stored_offset, exactbatch.batch, exactbatch.batch_range, exactbatch.coverage,
        exactbatch.rejected_record, exactbatch.time_boundary, exactbatch.batch_failure, exactbatch.run_life,
        exactbatch.empty_run, exactbatch.joined_topic, exactbatch.outbox, exactbatch.fingerprint to exactbatch_job;
    -- A table that joins by a pattern is registered by the plan that includes it first; none is changed.
    grant insert on exactbatch.pipeline to exactbatch_job;
    -- What batches commit is numbered, and what was sent is recorded and deleted.
    grant update (topic_id, last_sequence, sent_sequence, attempted_sequence, next_offsets, forwarder, sent_at)
        on exactbatch.forward to exactbatch_job;
    grant delete on exactbatch.outbox to exactbatch_job;
    grant update (next_offset, leader_epoch, updated_at) on exactbatch.stored_offset to exactbatch_job;
    grant update (status, committed_at, announced_at, pruned, records, rows, rejected, tombstones, dropped, stages,
        application_id, replaced) on exactbatch.batch to exactbatch_job;
    grant update (failures, failed_at, error, message, retryable) on exactbatch.batch_failure to exactbatch_job;
    grant update (records, rows, rejected, tombstones, replaced) on exactbatch.batch_range to exactbatch_job;
    -- A run that was created again, or found nothing once more, replaces what was recorded before.
    grant update (clear_number, planned_at), delete on exactbatch.empty_run to exactbatch_job;
    -- Fingerprints become sparser, the older they are.
    grant delete on exactbatch.fingerprint to exactbatch_job;
    -- A replay retracts what its ranges had produced.
    grant delete on exactbatch.coverage, exactbatch.rejected_record to exactbatch_job;
    -- Functions are executable by everybody who may use the schema, unless this is revoked.
    revoke execute on all functions in schema exactbatch from public;
    grant execute on function exactbatch.take_lock(text), exactbatch.try_lock(text),
        exactbatch.bind_transaction(text) to exactbatch_job;
    grant execute on function exactbatch.log_key(text, uuid, integer),
        exactbatch.refusal_of_input(text, oid, integer), exactbatch.repeats_a_field(text)
        to exactbatch_job, exactbatch_reader;
end $$;

reset search_path;
