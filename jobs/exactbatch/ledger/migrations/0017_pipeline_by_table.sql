-- Pipelines by the name of their target's table: a check of one pipeline reads those that may write to the same tables.

create index pipeline_by_table on exactbatch.pipeline (((parse_ident(target))[cardinality(parse_ident(target))]));
