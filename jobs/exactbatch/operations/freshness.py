"""Whether a pipeline is overdue: whether a record has waited for longer than its `freshness`. Pure."""

from datetime import datetime, timedelta

_DECIDES = "The ledger decides what status, lag, doctor, dashboards and the page in Airflow show."


def is_overdue(
    freshness: timedelta | None, oldest: datetime | None, now: datetime, *, is_known: bool = True
) -> bool | None:
    """Return whether a pipeline is overdue: whether its oldest unprocessed record is older than `freshness`.

    freshness  as the pipeline is registered; without one, the answer is None
    oldest     the timestamp of the oldest unprocessed record; None if there is none, or if it is not known
    now        the time of the comparison; like `oldest`, with a time zone
    is_known   False if there may be an older record: the answer is then True or None

    A pipeline without unprocessed records is never overdue, however long ago its last batch was.
    """
    if freshness is None:
        return None
    if oldest is not None and now - oldest > freshness:
        return True
    return False if is_known else None


def overdue_text(freshness: timedelta | None, oldest: datetime | None, now: datetime) -> str | None:
    """Return why a pipeline is overdue, without a full stop at the end; None if it is not."""
    if freshness is None or oldest is None or not is_overdue(freshness, oldest, now):
        return None
    return (
        f"overdue: its oldest unprocessed record is {_whole_seconds(now - oldest)} old, and freshness allows "
        f"{freshness}"
    )


def differing_freshness(own: timedelta | None, registered: timedelta | None) -> str | None:
    """Return a sentence on a pipeline that was not registered again after its freshness changed; None if both agree."""
    if own == registered:
        return None
    return f"its freshness is {_text(own)} in its code and {_text(registered)} in the ledger. {_DECIDES}"


def _text(freshness: timedelta | None) -> str:
    return "not set" if freshness is None else str(freshness)


def _whole_seconds(age: timedelta) -> timedelta:
    return timedelta(seconds=int(age.total_seconds()))
