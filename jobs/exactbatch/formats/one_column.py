"""The column of formats that have one."""

from exactbatch.columns import Column, parse_columns
from exactbatch.errors import ConfigurationError


def one_column(text: str, type_: str) -> Column:
    """Parse the name of a column, which then has the type `type_`, or its name and type, such as `"id bigint"`.

    Raises ConfigurationError for several columns, and what parse_columns() raises.
    """
    if len(text.split()) <= 1:
        return Column(text, type_)
    columns = parse_columns(text)
    if len(columns) > 1:
        raise ConfigurationError(
            f'expected one column, as in "id bigint", found {len(columns)} in {text!r}. Use Csv or Json for several.'
        )
    return columns[0]
