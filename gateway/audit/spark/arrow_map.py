# Records decoded in Spark's Python processes, a batch of Arrow at a time.

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

if TYPE_CHECKING:
    import pyarrow as pa


def map_in_arrow(
    frame: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    """DataFrame.mapInArrow, which up to PySpark 4.2 refuses to work without pandas, and doesn't use it.

    Where there is pandas, it is that method; with Spark Connect there always is.
    """
    if importlib.util.find_spec("pandas") is not None:
        return frame.mapInArrow(function, schema)
    java: Any = frame._jdf
    made = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = made(*(frame[name] for name in frame.columns))
    return DataFrame(java.mapInArrow(column._jc, False, None), frame.sparkSession)
