"""Decode bytes that are encoded as text, base64 and hexadecimal, and Kafka Connect's decimals: an unscaled integer as
bytes, highest first, which JSON carries in base64.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, DecimalException, Inexact
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exactbatch.formats.decimals import check_digits, parse_decimals
from exactbatch.formats.declared_fields import BinaryText
from exactbatch.formats.postgres_limits import refuse_infinity
from exactbatch.formats.refused_text import why_no_decimal

# Decoder and encoder. Only text that encodes back to itself is accepted.
_CODECS: Final[Mapping[str, tuple[Callable[[str], bytes], Callable[[bytes], str]]]] = {
    "base64": (binascii.a2b_base64, lambda value: binascii.b2a_base64(value, newline=False).decode()),
    "base64-url-safe": (base64.urlsafe_b64decode, lambda value: base64.urlsafe_b64encode(value).decode()),
    "hex": (bytes.fromhex, bytes.hex),
}
_WIDTH: Final = 16  # bytes of a decimal128
_MOST_DIGITS: Final = 38  # of a decimal128
_MOST_WIDE_DIGITS: Final = 76  # of a decimal256
_PAD: Final = 64  # a base64 character that stands for no bits
_INVALID: Final = 255
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
# Arrow writes a decimal with an exponent only if it has more places than these.
_PLAIN_PLACES: Final = 6
_EXACT: Final = Context(prec=100_000, traps=[Inexact])
_MOST_BYTES: Final = 41_525  # that an integer of this number of digits may take
# For this few values, Python takes a fifth of the time that numpy takes to begin.
_FEW: Final = 8


def decoded_text(values: pa.Array, encoding: BinaryText) -> pa.Array:
    """Return the bytes that text encodes; lists element by element. Raises ValueError, which quotes other text.

    Arrow has no kernel for this: 10,000 values of 100 bytes take about 10 ms.
    """
    if pa.types.is_list(values.type):
        elements = decoded_text(values.values, encoding)
        return pa.ListArray.from_arrays(values.offsets, elements, mask=values.is_null())
    decode, encode = _CODECS[encoding]

    def one(text: str | None) -> bytes | None:
        if text is None:
            return None
        try:
            decoded = decode(text)
        except ValueError:
            decoded = None
        if decoded is None or encode(decoded) != text:
            raise ValueError(f"expected bytes as {encoding}, found {text[:50]!r}")
        return decoded

    return pa.array(list(map(one, values.to_pylist())), pa.binary())


def encoded_text(values: pa.Array, encoding: BinaryText) -> pa.Array:
    """Return bytes as text; lists element by element."""
    if pa.types.is_list(values.type):
        elements = encoded_text(values.values, encoding)
        return pa.ListArray.from_arrays(values.offsets, elements, mask=values.is_null())
    _, encode = _CODECS[encoding]
    return pa.array([None if each is None else encode(each) for each in values.to_pylist()], pa.string())


def decimals_from_base64(text: pa.StringArray, scale: int, type_: pa.DataType) -> pa.Array:
    """Return the decimals that base64 text holds, all with one scale, as decimals, integers, floats or text.

    Raises ValueError for text that is not base64, and for a number that the type cannot hold unchanged.
    """
    is_slow = len(text) <= _FEW and pa.types.is_decimal128(type_)
    unscaled = _unscaled(text) if 0 <= scale <= _MOST_DIGITS and not is_slow else None
    if unscaled is None:
        written = [_written(each, scale) for each in decoded_text(text, "base64").to_pylist()]
        for number in written if is_slow else ():
            if number is not None and (reason := why_no_decimal(number, type_, is_wide=True)):
                raise ValueError(reason)
        return _from_text(pa.array(written, pa.string()), type_)
    numbers = pa.Array.from_buffers(
        pa.decimal128(_MOST_DIGITS, scale),
        len(text),
        [_validity(text), pa.py_buffer(unscaled)],
    )
    if pa.types.is_decimal128(type_):
        check_digits(numbers)
        # Arrow multiplies by a power of ten modulo 2^bits: 256 bits hold any product of 38 digits and 10^38.
        wide = numbers.cast(pa.decimal256(_MOST_WIDE_DIGITS, scale))
        return wide.cast(pa.decimal256(_MOST_WIDE_DIGITS, type_.scale)).cast(type_)
    if pa.types.is_integer(type_):
        check_digits(numbers)
        return numbers.cast(type_)
    if scale <= _PLAIN_PLACES:
        return _from_text(numbers.cast(pa.string()), type_)
    plain = [None if each is None else f"{each:f}" for each in numbers.to_pylist()]
    return _from_text(pa.array(plain, pa.string()), type_)


def decimals_with_scales(structs: pa.StructArray, type_: pa.DataType) -> pa.Array:
    """Return decimals that each bring their scale: structs of `scale` and `value`, base64 text.

    Raises ValueError as decimals_from_base64() does, and for a struct without its scale or value.
    """
    scales, text = (pc.struct_field(structs, name) for name in ("scale", "value"))
    if pc.any(pc.and_(structs.is_valid(), pc.or_(scales.is_null(), text.is_null()))).as_py():
        raise ValueError("expected a decimal with a scale and a value")
    encoded = decoded_text(text, "base64").to_pylist()
    written = [_written(each, scale) for each, scale in zip(encoded, scales.to_pylist(), strict=True)]
    return _from_text(pa.array(written, pa.string()), type_)


def _written(unscaled: bytes | None, scale: Any) -> str | None:
    """Return a decimal without an exponent; a scale below 0 means tens, hundreds, …"""
    if unscaled is None:
        return None
    if not unscaled:
        raise ValueError("expected the bytes of a decimal, found none")
    if abs(scale) > _EXACT.prec:
        raise ValueError(f"expected a decimal of at most {_EXACT.prec} places, found a scale of {scale}")
    if len(unscaled) > _MOST_BYTES:  # converting them takes time that grows with the square of their number
        raise ValueError(f"expected a decimal of at most {_EXACT.prec} digits, found {len(unscaled)} bytes")
    number = Decimal(int.from_bytes(unscaled, "big", signed=True))
    try:
        return format(number.scaleb(-scale, _EXACT), "f")
    except DecimalException:
        raise ValueError(f"expected a decimal of at most {_EXACT.prec} digits, found more") from None


def _from_text(text: pa.StringArray, type_: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(type_):
        return parse_decimals(pa.chunked_array([text]), type_).combine_chunks()
    numbers = text.cast(type_)
    refuse_infinity(numbers)
    return numbers


def _validity(values: pa.Array) -> pa.Buffer | None:
    if not values.null_count:
        return None
    return pa.concat_arrays([values.is_valid()]).buffers()[1]


def _unscaled(text: pa.StringArray) -> np.ndarray[Any, Any] | None:
    """Return n integers of 16 bytes, lowest first; None if a number has more bytes, or the text is not base64."""
    if len(text) == 0:
        return np.zeros((0, _WIDTH), np.uint8)
    whole = pc.fill_null(text, "AA==")  # zero, for nulls
    lengths = pc.binary_length(whole).to_numpy(zero_copy_only=False)
    if not lengths.all() or (lengths % 4).any():
        return None
    codes = np.full(256, _INVALID, np.uint8)
    codes[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(len(_ALPHABET))
    joined = pc.binary_join(_as_one_list(whole), "")[0].as_buffer()
    bits = codes[np.frombuffer(joined, np.uint8)]
    ends = np.cumsum(lengths)
    is_pad = bits == _PAD
    pads = is_pad[ends - 1].astype(np.int64) + is_pad[ends - 2]
    if (bits == _INVALID).any() or is_pad.sum() != pads.sum() or (is_pad[ends - 2] & ~is_pad[ends - 1]).any():
        return None
    bits[is_pad] = 0
    quads = bits.reshape(-1, 4).astype(np.uint32)
    words = quads[:, 0] << 18 | quads[:, 1] << 12 | quads[:, 2] << 6 | quads[:, 3]
    decoded = np.stack([words >> 16, words >> 8 & 0xFF, words & 0xFF], axis=1).astype(np.uint8).ravel()
    stops = ends // 4 * 3 - pads
    sizes = lengths // 4 * 3 - pads
    # Base64 that encodes back to itself has zeros in the bits that are left over.
    for left_over in (1, 2):
        if decoded[(stops[pads >= left_over] + left_over - 1)].any():
            return None
    if (sizes > _WIDTH).any():
        return None
    # Byte i of a number, counted from the lowest, is at its end - 1 - i; above its highest byte stands its sign.
    index = np.arange(_WIDTH)
    at = stops[:, None] - 1 - index
    is_own = index < sizes[:, None]
    sign = np.where(decoded[stops - sizes] >= 0x80, 0xFF, 0).astype(np.uint8)
    unscaled: np.ndarray[Any, Any] = np.where(is_own, decoded[np.where(is_own, at, 0)], sign[:, None])
    return np.ascontiguousarray(unscaled)


def _as_one_list(values: pa.StringArray) -> pa.ListArray:
    return pa.ListArray.from_arrays([0, len(values)], values)
