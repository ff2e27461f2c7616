-- Rows of coverage are deleted by replays: a publication that has the table needs to tell which.

alter table exactbatch.coverage replica identity full;
