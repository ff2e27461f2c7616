-- What Postgres itself says of a value from version 16 on, for older servers.

-- It sets no search_path: the checks of domains run in it, on the path of the statement. So all names are qualified.
create function exactbatch.refusal_of_input(value text, type oid, modifier integer) returns text
    language plpgsql strict stable parallel unsafe as $$
declare
    ignored boolean;
begin
    -- An array of one element: array_in() calls the input function of any type, with the modifier, as COPY does. A cast
    -- would cut off a text that is too long.
    ignored := pg_catalog.array_in(
        pg_catalog.concat(
            '{"', pg_catalog.replace(pg_catalog.replace(value, '\', '\\'), '"', '\"'), '"}'
        )::pg_catalog.cstring,
        type, modifier
    ) is null;
    return null;
exception when others then
    -- Errors of the server, the session or a privilege are not of the value. One that a user's function raises is an
    -- error from Postgres 16 on, too.
    if sqlstate operator(pg_catalog.~) '^(08|25|40|53|57|58|P0|XX|42501|42P01)' then
        raise;
    end if;
    return sqlerrm;
end $$;
comment on function exactbatch.refusal_of_input is
    'The message with which Postgres refuses a text as input of a type with a modifier, as pg_attribute has it; null if it takes the text. For servers older than Postgres 16.';

create function exactbatch.repeats_a_field(document text) returns boolean
    language sql strict immutable parallel safe set search_path = pg_catalog, pg_temp as $$
with recursive part (value) as (
    select document::json
    union all
    select child.value
    from part cross join lateral (
        select o.value from json_each(case when json_typeof(part.value) = 'object' then part.value end) o
        union all
        select a.value from json_array_elements(case when json_typeof(part.value) = 'array' then part.value end) a
    ) child
)
select exists (
    select from part
    where case when json_typeof(value) = 'object' then (
        select count(*) <> count(distinct field collate "C") from json_object_keys(value) field
    ) else false end
) $$;
comment on function exactbatch.repeats_a_field is
    'True if an object in a valid JSON text names a field twice. For servers older than Postgres 16, which do not have `is json with unique keys`.';
