-- The roles of a deployment. Run it as a superuser in the database, once before the first `exactbatch init` and
-- again after each one that brings the ledger forward: it can be run as often as you like.
--
--   exactbatch_owner   runs `exactbatch init`, `compact` and `boundaries --forget`; owns the ledger
--   exactbatch_job     plans, processes and replays: the login of postgres_default in Airflow
--   exactbatch_reader  sees status, rejects and audits; writes nothing
--
-- Logins are members: create role airflow login password '…' in role exactbatch_job;
-- Targets are yours to grant: usage on their schema and select, insert, update, delete to exactbatch_job, with
-- create on the schema where it is to create targets that are missing; select to exactbatch_reader.

do $$
declare name text;
begin
    foreach name in array array['exactbatch_owner', 'exactbatch_job', 'exactbatch_reader'] loop
        if to_regrole(name) is null then
            execute format('create role %I nologin', name);
        end if;
    end loop;
    execute format('grant connect, create on database %I to exactbatch_owner', current_database());
    execute format('grant connect, temporary on database %I to exactbatch_job', current_database());
    execute format('grant connect on database %I to exactbatch_reader', current_database());
end $$;

create schema if not exists exactbatch authorization exactbatch_owner;
create schema if not exists exactbatch_staging authorization exactbatch_owner;
grant usage on schema exactbatch to exactbatch_job, exactbatch_reader;
-- Staging tables belong to the job alone: they hold what may become rows.
grant usage, create on schema exactbatch_staging to exactbatch_job;
revoke all on schema exactbatch, exactbatch_staging from public;

do $$
begin
    if to_regclass('exactbatch.replay_horizon') is null then
        raise notice 'There is no ledger yet: run this once more after `exactbatch init`.';
        return;
    end if;
    grant select on all tables in schema exactbatch to exactbatch_job, exactbatch_reader;
    -- A row of pipeline is a lock, and whoever locks must be able to update something: not what identifies it.
    grant update (registered_at) on exactbatch.pipeline to exactbatch_job;
    grant insert on exactbatch.stored_offset, exactbatch.batch, exactbatch.batch_range, exactbatch.coverage,
        exactbatch.rejected_record, exactbatch.time_boundary, exactbatch.batch_failure, exactbatch.run_life
        to exactbatch_job;
    grant update (next_offset, leader_epoch, updated_at) on exactbatch.stored_offset to exactbatch_job;
    grant update (status, committed_at, announced_at, records, rows, rejected, tombstones, dropped)
        on exactbatch.batch to exactbatch_job;
    grant update (failures, failed_at, error, message, retryable) on exactbatch.batch_failure to exactbatch_job;
    grant update (records, rows, rejected, tombstones) on exactbatch.batch_range to exactbatch_job;
    -- A replay takes back what its ranges had given.
    grant delete on exactbatch.coverage, exactbatch.rejected_record to exactbatch_job;
end $$;
