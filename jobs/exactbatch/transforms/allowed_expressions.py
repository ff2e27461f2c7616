"""Spark's expressions: which return the same result for the same record, and why others may not.

The names are those of classes in org.apache.spark.sql, as Spark 4.2 has them. A class that is in neither list is
refused.
"""

from typing import Final, NamedTuple


class Reason(NamedTuple):
    """Why an expression or an operator is refused, and what to use instead."""

    why: str
    instead: str


class Finding(NamedTuple):
    """Something in a plan that may return other rows next time: the name that allows it, and the reason."""

    name: str
    reason: Reason


CLOCK: Final = Reason(
    "returns the time of the attempt", "Use a column of the record for the time, such as kafka_timestamp."
)
SESSION: Final = Reason(
    "depends on who runs the batch, and on the version of Spark", "Write the value into the transform."
)
RANDOM: Final = Reason(
    "returns a different value each time",
    "Compute the value from columns of the record, for example with xxhash64().",
)
ORDER: Final = Reason(
    "depends on the order in which Spark processes the rows",
    "Use min, max, count, sum of whole numbers or decimals, rank, or sort_array(collect_list(…)).",
)
PICK: Final = Reason("keeps the rows that Spark processes first", "Use rank(), or min and max over a column.")
FLOAT: Final = Reason(
    "adds floating-point numbers, whose sum depends on the order in which Spark processes the rows",
    "Cast to a decimal first.",
)
OVERFLOW: Final = Reason(
    "may overflow in an intermediate sum, for some orders of the rows only",
    "Cast to a smaller decimal first.",
)
APPROXIMATE: Final = Reason(
    "is approximate, and depends on how Spark partitions the rows",
    "Use an exact function, such as count(distinct …).",
)
EQUAL: Final = Reason(
    "returns any one of the values that its collation considers equal",
    "Use lower(), or no collation, instead.",
)
MANY: Final = Reason(
    "is a Python function that receives many rows at a time, divided as the tasks happen to be",
    "Use a plain Python function of one row.",
)
DECLARED: Final = Reason(
    "is declared nondeterministic", "Use a function that returns the same result for the same record."
)
TOGETHER: Final = Reason(
    "combines records of a batch, and a replay of a part of the batch does not have all of them",
    "Use a sink that works by batch: Append(…, lineage='batch').",
)
NO_RECORD: Final = Reason(
    "returns rows that come from no record, or that depend on which records are in the batch",
    "Put the records on the side of the join whose rows are all kept, or use a sink that works by batch: "
    "Append(…, lineage='batch').",
)
HIDDEN: Final = Reason(
    "hides from Spark's plan how the rows were computed", "Use only DataFrames and SQL functions."
)
CONSTANT: Final = Reason(
    "converts text that Spark computes to a time, and the text may be a word such as 'now'",
    "Write the text itself.",
)
DATELESS: Final = Reason(
    "converts text to a timestamp, and gives text without a date, such as '10:15', the date of the attempt",
    "Let the value format read the time (at timestamptz), or specify a format: as in "
    "to_timestamp(text, 'yyyy-MM-dd HH:mm'), or as timestampFormat of from_json, from_csv and from_xml.",
)
UNKNOWN: Final = Reason(
    "is not known to return the same result each time",
    "Use functions and operators that `exactbatch explain transform-functions` allows.",
)

# These are computed from one record.
_OF_A_RECORD: Final = """
    Alias AttributeReference OuterReference OuterScopeReference Literal Cast UpCast AssertNotNull SortOrder
    TypedNullLiteral LambdaFunction NamedLambdaVariable NamePlaceholder KnownNullable KnownNotNull
    KnownNotContainsNull KnownFloatingPointNormalized PreciseTimestampConversion CheckOverflow MakeDecimal
    UnscaledValue ToPrettyString NoThrow TryEval Empty2Null PipeExpression With CommonExpressionDef
    CommonExpressionRef SQLFunctionExpression SQLScalarFunction ScalaUDF PythonUDF ScalarSubquery ListQuery
    Exists LateralSubquery InSubquery FunctionTableSubqueryArgumentExpression

    If CaseWhen Coalesce Nvl Nvl2 NullIf NullIfZero ZeroIfNull NaNvl IsNull IsNotNull IsNaN AtLeastNNonNulls
    Greatest Least Between And Or Not In InSet EqualTo EqualNullSafe EqualNull GreaterThan GreaterThanOrEqual
    LessThan LessThanOrEqual AssertTrue RaiseError TypeOf

    Abs Acos Acosh Asin Asinh Atan Atan2 Atanh Bin BRound Cbrt Ceil Cos Sec Cosh Conv ToDegrees EulerNumber Exp
    Expm1 Floor Factorial Hex Hypot Logarithm Log10 Log1p Log2 Log Remainder UnaryMinus Pi Pmod UnaryPositive
    Pow ToRadians Rint Round RoundCeil RoundFloor ShiftLeft ShiftRight ShiftRightUnsigned Signum Sin Csc Sinh
    Sqrt Tan Cot Tanh WidthBucket Add Subtract Multiply Divide IntegralDivide TryAdd TryDivide TryMod
    TrySubtract TryMultiply BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BitwiseCount BitwiseGet
    BitmapBucketNumber BitmapBitPosition BitmapCount Murmur3Hash XxHash64 CollationAwareMurmur3Hash
    CollationAwareXxHash64 HiveHash Crc32 Md5 Sha1 Sha2 AesDecrypt TryAesDecrypt Unhex Base64 UnBase64
    VectorCosineSimilarity VectorInnerProduct VectorL2Distance VectorNorm VectorNormalize

    Ascii Chr Collate ResolvedCollation Collation CollationKey Contains StartsWith EndsWith BitLength Length
    Concat ConcatWs Decode StringDecode Elt Encode FindInSet FormatNumber FormatString ToNumber TryToNumber
    ToCharacter InitCap StringInstr Lower Upper Levenshtein Luhncheck Like ILike LikeAll LikeAny NotLikeAll
    NotLikeAny OctetLength StringLocate StringLPad StringRPad BinaryPad StringTrim StringTrimBoth StringTrimLeft
    StringTrimRight RegExpExtract RegExpExtractAll RegExpReplace RegExpCount RegExpSubStr RegExpInStr RLike
    StringRepeat StringReplace Overlay Sentences SoundEx StringSpace StringSplit StringSplitSQL SplitPart
    Substring Left Right SubstringIndex StringTranslate IsValidUTF8 MakeValidUTF8 ValidateUTF8 TryValidateUTF8
    Quote Mask UrlEncode UrlDecode TryUrlDecode ParseUrl TryParseUrl StringToMap ToBinary TryToBinary

    AddMonths DateAdd DateSub DateDiff DateAddInterval DateAddYMInterval DateFormatClass DatetimeSub DayOfMonth
    DayOfYear DayOfWeek WeekDay DayName WeekOfYear YearOfWeek Year Quarter Month MonthName Hour Minute Second
    SecondWithFraction HoursOfTime MinutesOfTime SecondsOfTime SecondsOfTimeWithFraction Extract DatePart
    TimePart FromUnixTime FromUTCTimestamp ToUTCTimestamp LastDay MonthsBetween NextDay ParseToTimestamp
    ParseToDate ToTime GetTimestamp ToUnixTimestamp UnixTimestamp TruncDate TruncTimestamp TimeDiff TimeTrunc
    TimeAddInterval TimeFromSeconds TimeFromMillis TimeFromMicros TimeToSeconds TimeToMillis TimeToMicros
    TimeBucket MakeDate MakeTime MakeTimestamp MakeTimestampNTZ MakeTimestampFromDateTime TryMakeTimestamp
    TryMakeTimestampFromDateTime MakeInterval TryMakeInterval MakeDTInterval MakeYMInterval DateFromUnixDate
    UnixDate SecondsToTimestamp MillisToTimestamp MicrosToTimestamp UnixSeconds UnixMillis UnixMicros
    ConvertTimezone TimestampAdd TimestampDiff TimestampAddInterval TimestampAddYMInterval SubtractDates
    SubtractTimes SubtractTimestamps CastTimestampNTZToLong MultiplyInterval MultiplyDTInterval
    MultiplyYMInterval DivideInterval DivideDTInterval DivideYMInterval TimeWindow WindowTime
    ExtractIntervalYears ExtractIntervalMonths ExtractIntervalDays ExtractIntervalHours ExtractIntervalMinutes
    ExtractIntervalSeconds ExtractANSIIntervalYears ExtractANSIIntervalMonths ExtractANSIIntervalDays
    ExtractANSIIntervalHours ExtractANSIIntervalMinutes ExtractANSIIntervalSeconds

    CreateArray CreateMap CreateNamedStruct GetStructField GetArrayStructFields GetArrayItem GetMapValue
    UpdateFields WithField DropField Get ElementAt TryElementAt Size ArraySize Slice Reverse Flatten Sequence
    ArrayContains ArraysOverlap ArrayInsert ArrayIntersect ArrayJoin ArrayPosition ArraySort ArrayExcept
    ArrayUnion ArrayCompact ArraysZip SortArray ArrayMin ArrayMax ArrayAppend ArrayPrepend ArrayRepeat
    ArrayRemove ArrayDistinct ArrayTransform ArrayFilter ArrayExists ArrayForAll ArrayAggregate
    ArrayBinarySearch ZipWith MapContainsKey MapFromArrays MapKeys MapValues MapEntries MapFromEntries MapConcat
    MapFilter MapZipWith MapSort TransformKeys TransformValues Explode PosExplode Inline Stack JsonTuple
    VariantExplode GeneratorOuter

    StructsToJson SemiStructuredExtract JsonToStructs SchemaOfJson GetJsonObject LengthOfJsonArray
    JsonObjectKeys CsvToStructs SchemaOfCsv StructsToCsv XmlToStructs SchemaOfXml StructsToXml XPathList
    XPathBoolean XPathDouble XPathFloat XPathInt XPathLong XPathShort XPathString ParseJson IsVariantNull
    IsValidVariant VariantGet SchemaOfVariant ToVariantObject FromAvro ToAvro SchemaOfAvro FromProtobuf
    ToProtobuf AvroDataToCatalyst CatalystDataToAvro ProtobufDataToCatalyst CatalystDataToProtobuf ST_AsBinary
    ST_GeogFromWKB ST_GeomFromWKB ST_Srid ST_SetSrid
"""

# Over many rows these return the same result, whatever the order and the partitions in which Spark processes
# the rows.
_OF_MANY_ROWS: Final = """
    AggregateExpression Count CountIf Min Max Sum Average BoolAnd BoolOr BitAndAgg BitOrAgg BitXorAgg RegrCount
    Percentile PercentileCont PercentileDisc Median BitmapConstructAgg BitmapOrAgg BitmapAndAgg ListAgg
    PivotFirst Grouping GroupingID Cube Rollup GroupingSets SessionWindow WindowExpression WindowSpecDefinition
    SpecifiedWindowFrame UnspecifiedFrame CurrentRow UnboundedPreceding UnboundedFollowing Rank DenseRank
    PercentRank CumeDist
"""

ALLOWED: Final = frozenset((_OF_A_RECORD + _OF_MANY_ROWS).split())

_REFUSED: Final = {
    CLOCK: """
        CurrentTimestamp Now CurrentDate CurrentTime LocalTimestamp CurrentBatchTimestamp
    """,
    SESSION: """
        CurrentTimeZone CurrentDatabase CurrentCatalog CurrentPath CurrentUser SparkVersion SQLKeywords
        Collations VariableReference
    """,
    RANDOM: """
        Rand Randn RandStr Uniform Uuid Shuffle AesEncrypt CallMethodViaReflection TryReflect
        MonotonicallyIncreasingID SparkPartitionID InputFileName InputFileBlockStart InputFileBlockLength
        DistributedSequenceID
    """,
    ORDER: """
        First Last AnyValue CollectList CollectSet CollectTopK MaxBy MinBy MaxMinByK Mode PandasMode RowNumber
        NTile Lag Lead NthValue EWM NullIndex
    """,
    FLOAT: """
        StddevSamp StddevPop VarianceSamp VariancePop Skewness Kurtosis Corr PearsonCorrelation CovPopulation
        CovSample RegrAvgX RegrAvgY RegrR2 RegrSXX RegrSXY RegrSYY RegrSlope RegrIntercept RegrReplacement
        Product VectorAvg VectorSum PandasProduct PandasStddev PandasVariance PandasSkewness PandasKurtosis
        PandasCovar
    """,
    APPROXIMATE: """
        HyperLogLogPlusPlus ApproximatePercentile ApproxCountDistinctForIntervals HistogramNumeric
        CountMinSketchAgg BloomFilterAggregate ApproxTopK ApproxTopKAccumulate ApproxTopKCombine
        ApproxTopKEstimate HllSketchAgg HllUnionAgg HllSketchEstimate HllUnion ThetaSketchAgg ThetaUnionAgg
        ThetaIntersectionAgg ThetaSketchEstimate ThetaUnion ThetaDifference ThetaIntersection KllSketchAggBigint
        KllSketchAggFloat KllSketchAggDouble KllMergeAggBigint KllMergeAggFloat KllMergeAggDouble
        KllSketchToStringBigint KllSketchToStringFloat KllSketchToStringDouble KllSketchGetNBigint
        KllSketchGetNFloat KllSketchGetNDouble KllSketchMergeBigint KllSketchMergeFloat KllSketchMergeDouble
        KllSketchGetQuantileBigint KllSketchGetQuantileFloat KllSketchGetQuantileDouble KllSketchGetRankBigint
        KllSketchGetRankFloat KllSketchGetRankDouble TupleSketchAggDouble TupleSketchAggInteger
        TupleUnionAggDouble TupleUnionAggInteger TupleIntersectionAggDouble TupleIntersectionAggInteger
        TupleDifferenceDouble TupleDifferenceInteger TupleDifferenceThetaDouble TupleDifferenceThetaInteger
        TupleIntersectionDouble TupleIntersectionInteger TupleIntersectionThetaDouble
        TupleIntersectionThetaInteger TupleSketchEstimateDouble TupleSketchEstimateInteger
        TupleSketchSummaryDouble TupleSketchSummaryInteger TupleSketchThetaDouble TupleSketchThetaInteger
        TupleUnionDouble TupleUnionInteger TupleUnionThetaDouble TupleUnionThetaInteger
    """,
    MANY: "PythonUDAF PythonUDTF UnresolvedPolymorphicPythonUDTF",
}

# By class; the reason for a class that is neither here nor in ALLOWED is UNKNOWN.
REFUSED: Final = {name: reason for reason, names in _REFUSED.items() for name in names.split()}
