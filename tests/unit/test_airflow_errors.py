"""What Airflow's task SDK raises while the API server is away is named, and left to the retries of a task."""

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from exactbatch.airflow.exceptions import airflow_errors
from exactbatch.airflow.versions import AirflowFailException
from exactbatch.errors import AirflowUnavailable, UnexpectedError

REFUSED = {"status_code": None, "message": "[Errno 111] Connection refused", "exception_type": "ConnectError"}


def raised(type_: ErrorType) -> AirflowRuntimeError:
    return AirflowRuntimeError(ErrorResponse(error=type_, detail=REFUSED))


@pytest.mark.parametrize("type_", [ErrorType.API_SERVER_ERROR, ErrorType.GENERIC_ERROR])
def test_an_api_server_that_does_not_answer_is_named_and_left_to_retries(type_):
    with pytest.raises(AirflowUnavailable) as caught, airflow_errors():
        raise raised(type_)
    assert "Airflow's API server did not answer a request of this task" in str(caught.value)
    assert "Connection refused" in str(caught.value)


@pytest.mark.skipif(not hasattr(ErrorType, "PERMISSION_DENIED"), reason="from Airflow 3.2 on")
def test_an_api_server_that_denies_a_task_what_it_asks_for_ends_the_task_at_once():
    with pytest.raises(AirflowFailException, match="Check the permissions of the task"), airflow_errors():
        raise raised(ErrorType.PERMISSION_DENIED)


def test_other_answers_of_the_api_server_are_as_unexpected_as_before():
    with pytest.raises(UnexpectedError, match="XCOM_NOT_FOUND"), airflow_errors():
        raise raised(ErrorType.XCOM_NOT_FOUND)
