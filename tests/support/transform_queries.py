"""Queries of transforms, by what they need of the records."""

LINEAGE = "kafka_topic, kafka_partition, kafka_offset, kafka_timestamp"

VALUES = """
    select cast(id as int) as id, concat('n', id % 3) as name, id % 5 as whole, cast(id as double) / 7 as fraction,
    cast(id as decimal(10,2)) as amount, cast(id as decimal(38,2)) as wide, cast(id % 3 as smallint) as small,
    timestamp '2026-01-01 00:00:00' + make_dt_interval(0, 0, 0, id) as at, array('a', concat('n', id)) as tags,
    concat('N', id % 3) collate utf8_lcase as folded, 'topic' as kafka_topic,
    cast(id % 2 as int) as kafka_partition, id div 2 as kafka_offset,
    timestamp '2026-01-01 00:00:00' as kafka_timestamp
    from range({rows})
"""
STATIC = "select * from values (1, 'one', 1.5D), (2, 'two', 2.5D) as t (id, label, share)"
# What needs no more than one record at a time.
ONE_AT_A_TIME = [
    "select * from records",
    f"select upper(name) as name, {LINEAGE} from records where id > 3 order by id",
    "select r.*, tag from records r lateral view explode(tags) as tag",
    "select * from records union all select * from records where id > 3",
    "with r as (select * from records), s as (select max(id) as m from static) select r.* from r, s where id < m",
    "select /*+ broadcast(s) */ r.*, label from records r join static s on r.id = s.id",
    "select r.*, label from records r left join static s on r.id = s.id",
    "select r.*, label from static s right join records r on r.id = s.id",
    "select * from records left semi join static using (id)",
    "select * from records left anti join static using (id)",
    "select * from records where id in (select id from static)",
    "select * from records where id not in (select id from static)",
    "select * from records r where exists (select 1 from static s where s.id = r.id)",
    "select *, (select max(label) from static s where s.id = r.id) as label from records r",
    "select r.*, t.label from records r, lateral (select label from static s where s.id = r.id) t",
    "select * from records where exists(tags, x -> x = 'a')",
    "select *, aggregate(transform(tags, x -> length(x)), 0, (a, b) -> a + b) as n from records",
    "select *, window(at, '1 hour').start as hour from records",
    "select * from records where at > timestamp '2026-01-01' and at < '2027-01-01'",
    "select *, to_date('2026-01-01') as day, cast('2026-01-01' as timestamp) as at2 from records",
    "select *, 'now' as word, coalesce(name, 'today') as other from records where name <> 'yesterday'",
    "select *, try_to_timestamp(name, 'yyyy') as t from records",
    "select * from records unpivot (n for what in (id, small))",
    "from records |> where id > 3 |> extend id * 2 as double",
    "select * from records where id > (select avg(small) from (select cast(id as smallint) as small from static))",
    "select * from records distribute by id sort by name",
    "select *, cast(id as timestamp) as t, cast('2026-01-01 10:00' as timestamp) as u, '10:15' as v, "
    "try_cast(name as timestamp_ntz) as n, from_json(name, 'a timestamp', map('TimestampFormat', 'yyyy')) as j "
    "from records",
]
# Rows of several records each: the same whatever the order, so allowed where replays process whole batches.
SEVERAL = [
    ("select *, rank() over (partition by name order by id) as place from records", ["window"]),
    ("select *, count(*) over (partition by name) as n from records", ["window"]),
    ("select name, count(*), sum(whole), max(at), min(fraction) from records group by name", ["group by"]),
    ("select count(distinct name), avg(small), sum(amount), avg(amount) from records", ["group by"]),
    (
        "select name, percentile(whole, 0.5), median(whole), bool_or(id > 3) from records group by 1",
        ["group by"],
    ),
    ("select sort_array(collect_list(name)), sort_array(collect_set(id), false) from records", ["group by"]),
    ("select listagg(name, ',') within group (order by name) from records", ["group by"]),
    ("select name, id % 2, count(*) from records group by cube (name, id % 2)", ["group by"]),
    ("select * from (select name, small, id from records) pivot (max(id) for small in (0, 1))", ["group by"]),
    ("select window(at, '1 minute') as w, count(*) from records group by 1", ["group by"]),
    ("select session_window(at, '1 minute') as w, count(*) from records group by 1", ["group by"]),
    ("select distinct name from records", ["distinct"]),
    ("select id from records intersect select id from static", ["intersect"]),
    ("select id from records except select id from static", ["except"]),
    ("select id from static except select id from records", ["except"]),
    ("select id from records union select id from static", ["distinct"]),
    ("select a.* from records a join records b on a.id = b.id + 1", ["self-join"]),
    ("with r as (select * from records) select a.id from r a left join r b on a.id = b.id", ["self-join"]),
    ("select a.id from records a, lateral (select id from records b where b.id = a.id) t", ["self-join"]),
    ("select * from records where id in (select max(id) from records)", ["group by", "subquery"]),
    ("select * from records where id not in (select id from records where id > 3)", ["subquery"]),
    ("select *, (select max(id) from records) as last from records", ["group by", "subquery"]),
    ("select * from records a where exists (select 1 from records b where b.id > a.id)", ["subquery"]),
    ("select label from static where id in (select id from records)", ["subquery"]),
    ("select r.*, label from records r full join static s on r.id = s.id", ["outer join"]),
    ("select r.*, label from records r right join static s on r.id = s.id", ["outer join"]),
    ("select r.*, label from static s left join records r on r.id = s.id", ["outer join"]),
    ("select * from static left anti join records using (id)", ["semi-join"]),
]
