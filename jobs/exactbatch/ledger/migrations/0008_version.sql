-- What orders the changes of a key is part of what an Upsert has written so far, as its key is.

alter table exactbatch.pipeline add column version text;
comment on column exactbatch.pipeline.version is
    'The column that orders the changes of a key (Upsert), empty where there is none; null: registered before this was kept, so not compared until the next exactbatch init.';
