-- What pg_input_error_info() says from Postgres 16 on, for older servers.

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
    -- Errors of the server, the session or a privilege are not of the value.
    if sqlstate operator(pg_catalog.~) '^(08|25|40|53|57|58|XX|42501|42P01)' then
        raise;
    end if;
    return sqlerrm;
end $$;
comment on function exactbatch.refusal_of_input is
    'The message with which Postgres refuses a text as input of a type with a modifier, as pg_attribute has it; null if it takes the text. For servers older than Postgres 16.';
