"""Departures from New York's airports in 2013, as JSON."""

from exactbatch import Append, Json, Pipeline

flights = Pipeline(
    name="flights",
    topics="flights",
    value=Json(
        """
        year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int,
        arr_time int, sched_arr_time int, arr_delay int, carrier text, flight int, tailnum text,
        origin text, dest text, air_time int, distance int, hour int, minute int, time_hour timestamptz
        """
    ),
    sink=Append("public.flight"),
)
