"""Statements with numbered parameters, for psycopg2."""

from exactbatch.postgres.numbered import named


def test_numbered_parameters_may_repeat_and_percent_signs_stay():
    statement = "select format('%I', $1), $2 where $10 = $1"
    text, values = named(statement, [f"value {number}" for number in range(1, 11)])
    assert text == "select format('%%I', %(p1)s), %(p2)s where %(p10)s = %(p1)s"
    assert (values["p1"], values["p2"], values["p10"]) == ("value 1", "value 2", "value 10")
