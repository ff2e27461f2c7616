"""Settings come from the environment, and their secrets stay in them."""

import traceback

import pytest

from exactbatch.errors import ConfigurationError
from exactbatch.postgres.connection import connect
from exactbatch.settings import KAFKA, POSTGRES, Settings

SETTINGS = Settings(
    kafka={"bootstrap.servers": "kafka:9092", "sasl.password": "s3cret"},
    postgres="host=postgres password=s3cret",
)


@pytest.fixture
def environment(monkeypatch):
    """An environment with good settings."""
    for name, value in SETTINGS.as_environment().items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_settings_survive_the_way_through_an_environment(environment):
    assert Settings.from_environment() == SETTINGS


def test_secrets_are_not_shown():
    assert repr(SETTINGS) == "Settings()"


@pytest.mark.parametrize("name", [KAFKA, POSTGRES])
@pytest.mark.parametrize("value", ["", None])
def test_a_missing_variable_is_named(environment, name, value):
    environment.delenv(name) if value is None else environment.setenv(name, value)
    with pytest.raises(
        ConfigurationError, match=f"the environment variable {name} is not set. Set it to "
    ) as caught:
        Settings.from_environment()
    assert "exactbatch local" not in str(caught.value)


def test_all_missing_variables_are_named_at_once():
    with pytest.raises(ConfigurationError, match=f"{KAFKA} is not set. .* Also, .* {POSTGRES} is not set."):
        Settings.from_environment({})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("sasl.password=s3cret", "text that is not JSON at character 0"),
        ('{"sasl.password": "s3cret"', "text that is not JSON at character 26"),
        ('["s3cret"]', "list"),
        ("null", "NoneType"),
    ],
)
def test_kafka_properties_that_are_no_json_object_are_refused_without_being_shown(environment, text, found):
    environment.setenv(KAFKA, text)
    with pytest.raises(
        ConfigurationError, match=f"expected {KAFKA} to be a JSON object.*found {found}"
    ) as caught:
        Settings.from_environment()
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_a_property_that_is_given_twice_is_named_and_not_dropped(environment):
    environment.setenv(
        KAFKA, '{"sasl.password": "s3cret", "bootstrap.servers": "k:1", "sasl.password": "0ther"}'
    )
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environment()
    assert (
        str(caught.value)
        == f"{KAFKA}: sasl.password: given twice in one JSON object. Keep one of the values."
    )


@pytest.mark.parametrize("dsn", ["host=h password=x s3cret", "postgresql://u:s3cret@[h/d", "s3cret"])
def test_connection_string_that_libpq_cannot_parse_is_refused_without_being_shown(dsn):
    with pytest.raises(ConfigurationError, match="to be a libpq connection string.*does not parse") as caught:
        connect(dsn, application="tests")
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
