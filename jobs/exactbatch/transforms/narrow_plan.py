"""Whether Spark computes the rows of a transform task by task, as it reads the records."""

from typing import Any, Final

from pyspark.sql import DataFrame

from exactbatch.transforms.spark_plan import class_of, items

# Physical operators that return the rows that one partition of their only input gives, in its order.
_NARROW: Final = frozenset(
    {
        "ArrowEvalPythonExec",
        "BatchEvalPythonExec",
        "ColumnarToRowExec",
        "FilterExec",
        "GenerateExec",
        "InputAdapter",
        "MapInArrowExec",
        "ProjectExec",
        "WholeStageCodegenExec",
    }
)
_PYTHON: Final = "MapInArrowExec"
_TASKS: Final = "RangeExec"


def is_narrow(frame: DataFrame) -> bool:
    """Return True if Spark runs the transform between the decoding and the staging of rows, in the same tasks.

    `frame` is what stages the rows; its plan has these two Python functions. Raises the errors of planning.
    """
    plan: Any = frame._jdf.queryExecution().executedPlan()
    if plan.subqueriesAll().size():
        return False
    functions = 0
    while (kind := class_of(plan)) in _NARROW:
        functions += kind == _PYTHON
        children = list(items(plan.children()))
        if len(children) != 1:
            return False
        (plan,) = children
    return kind == _TASKS and functions == 2
