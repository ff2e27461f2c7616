-- Pipelines can be renamed, and are known with their topics; what was announced; lives of DAG runs.

alter table exactbatch.pipeline
    add column topics text[] not null default '{}',
    add column shares_topics boolean not null default false;
comment on column exactbatch.pipeline.topics is
    'What it read when it was registered last; empty: registered before this was kept, until the next exactbatch init.';
comment on column exactbatch.pipeline.shares_topics is
    'Whether it may load topics that another pipeline loads into the same target: exactbatch init --share-topics.';

-- A new name of a pipeline reaches all its rows.
alter table exactbatch.stored_offset drop constraint stored_offset_pipeline_fkey,
    add constraint stored_offset_pipeline_fkey foreign key (pipeline) references exactbatch.pipeline on update cascade;
alter table exactbatch.batch drop constraint batch_pipeline_fkey,
    add constraint batch_pipeline_fkey foreign key (pipeline) references exactbatch.pipeline on update cascade;
alter table exactbatch.coverage drop constraint coverage_pipeline_fkey,
    add constraint coverage_pipeline_fkey foreign key (pipeline) references exactbatch.pipeline on update cascade;
alter table exactbatch.rejected_record drop constraint rejected_record_pipeline_fkey,
    add constraint rejected_record_pipeline_fkey foreign key (pipeline) references exactbatch.pipeline on update cascade;
alter table exactbatch.time_boundary drop constraint time_boundary_pipeline_fkey,
    add constraint time_boundary_pipeline_fkey foreign key (pipeline) references exactbatch.pipeline on update cascade;
alter table exactbatch.replay_horizon drop constraint replay_horizon_pipeline_fkey,
    add constraint replay_horizon_pipeline_fkey foreign key (pipeline) references exactbatch.pipeline on update cascade;

-- The default is for the batches of before, and no row has to be rewritten for it.
alter table exactbatch.batch add column announced_at timestamptz default '-infinity';
alter table exactbatch.batch alter column announced_at drop default;
update exactbatch.batch set announced_at = null where status = 'planned';
comment on column exactbatch.batch.announced_at is
    'When an asset event told of its results; -infinity: it has none, or had them before this was kept.';
create index batch_unannounced on exactbatch.batch (pipeline, batch_id)
    where announced_at is null and status <> 'planned' and dag_id is not null;
create index batch_planned_replay on exactbatch.batch (pipeline, batch_id)
    where kind = 'replay' and status = 'planned';

create table exactbatch.run_life (
    pipeline        text not null references exactbatch.pipeline on update cascade,
    dag_id          text not null,
    run_id          text not null,
    generation      integer not null,
    began_at        timestamptz not null default clock_timestamp(),
    primary key (pipeline, dag_id, run_id, generation)
);
comment on table exactbatch.run_life is
    'A DAG run that was created under the id of an earlier one: its batches begin at this generation.';

create or replace function exactbatch.refuse_change_of_the_past() returns trigger language plpgsql as $$
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
                if kept is not distinct from old then
                    return new;
                end if;
            end if;
            raise 'batch % is %: its row can not be changed any more', old.batch_id, old.status
                using errcode = 'restrict_violation';
        end if;
    elsif tg_table_name = 'batch_range' then
        if (select status <> 'planned' from exactbatch.batch where batch_id = old.batch_id) then
            raise 'batch % is not planned: its ranges can not be changed any more', old.batch_id
                using errcode = 'restrict_violation';
        end if;
    elsif kept.next_offset < old.next_offset
          or (kept.pipeline, kept.topic, kept.partition, kept.topic_id)
             is distinct from (old.pipeline, old.topic, old.partition, old.topic_id) then
        raise 'the stored offset % of %[%] can only move forward', old.next_offset, old.topic, old.partition
            using errcode = 'restrict_violation';
    end if;
    return case tg_op when 'DELETE' then old else new end;
end $$;
