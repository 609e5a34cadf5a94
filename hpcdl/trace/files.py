"""Files: inputs of limited size, texts in TOML, CSV and JSON, checksums, atomic replacement, JSON as dataclasses.

In files of older versions ``asynchronous`` had the settings of five strategies: :func:`spelled_now`.
Inputs must be regular files: a FIFO would block for ever; /dev/zero or a damaged archive would fill the memory.
"""

import codecs
import csv
import errno
import gzip
import hashlib
import json
import lzma
import os
import re
import stat
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _csv import Reader


TRIALS_FILE: Final = "trials.json"
"""In a run folder: trials of grids that have ended."""
MAX_TEXT: Final = 4 << 20
"""Largest size of a suite or network file (bytes)."""
MAX_DATA: Final = 1 << 30
"""Largest size of a data file that is read as a whole, unpacked (bytes)."""


def check_regular(path: Path) -> int:
    """Return the size of a regular file or a folder; OSError, with the reason as ``strerror``, for other kinds.

    A folder passes, because opening it fails with the system's own message.
    """
    try:
        status = path.stat()
    except ValueError as error:  # a null character
        raise FileNotFoundError(errno.ENOENT, str(error), str(path)) from None
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return status.st_size


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the contents of a regular file, unpacked if its name ends in .gz or .xz.

    Raises OSError if it cannot be read, is damaged, or exceeds ``limit`` bytes.
    """
    unpack: Callable[[Any], Any] = gzip.open if path.suffix == ".gz" else nullcontext
    size, content = check_regular(path), b""
    # O_NONBLOCK: the path may have become a FIFO since it was checked
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with open(descriptor, "rb") as stream, unpack(stream) as file:  # noqa: PTH123
            content = b"" if size > limit else file.read(limit + 1)
        content = _unpacked_xz(content, limit) if path.suffix == ".xz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise OSError(errno.EIO, str(error), str(path)) from None
    if max(size, len(content)) > limit:
        how = " when unpacked" if path.suffix in {".gz", ".xz"} else ""
        raise OSError(errno.EFBIG, f"larger than {limit} bytes{how}", str(path))
    return content


def _unpacked_xz(packed: bytes, limit: int) -> bytes:
    """Return the contents of an .xz file, at most one byte more than ``limit``. EOFError, LZMAError: damaged."""
    content = b""
    while packed and len(content) <= limit:  # lzma.open would ignore bytes behind the last stream
        stream = lzma.LZMADecompressor()
        content += stream.decompress(packed, limit + 1 - len(content))
        if len(content) <= limit and not stream.eof:
            raise EOFError("it ends before the end of its packed contents")
        packed = stream.unused_data.lstrip(b"\0")  # zeros may follow a stream
    return content


def open_log(path: Path, *, create: bool = True) -> int:
    """Return a descriptor that appends to a regular file. Raises OSError, also for a link, at once for a FIFO."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | os.O_CREAT * create, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file without its byte order mark. ValueError, one line that names the file."""
    try:
        content = read_bytes(path, MAX_TEXT)
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        place = "UTF-16" if wide else f"at byte {error.start}"
        raise ValueError(f"{path}: cannot be read: not UTF-8 text ({place}); save it as UTF-8") from None


JsonObject: TypeAlias = dict[str, Any]
"""Parsed text: an object of JSON, or a table of TOML."""
JsonMapping: TypeAlias = Mapping[str, Any]
"""A :data:`JsonObject` that is only read."""


def parse_toml(text: str, place: object) -> JsonObject:
    """Return the tables of a TOML text from ``place``, which a ValueError names."""
    return dict(_parsed(tomllib.loads, text, f"{place}: not TOML"))


def read_toml(path: Path) -> JsonObject:
    """Return the tables of a TOML file. Raises ValueError, one line that names the file."""
    return parse_toml(read_text(path), path)


def parse_json(text: str | bytes, place: object) -> Any:
    """Return the value of a JSON text from ``place``, which a ValueError names."""
    return _parsed(json.loads, text, f"{place}: not JSON")


def _parsed(parser: Callable[[Any], Any], text: str | bytes, complaint: str) -> Any:
    try:
        return parser(text)
    except RecursionError:
        reason = "tables or lists nested too deeply"
    except ValueError as error:
        reason = " ".join(str(error).split())
    raise ValueError(f"{complaint}: {reason}")


SEPARATORS: Final = ",;\t"
"""Characters that may separate the cells of a table."""


def read_csv(path: Path) -> "Reader":
    """Return a reader of the rows of a CSV file, whose first line shows the separator; comments are empty rows.

    Raises ValueError as :func:`read_text`; reading a row raises csv.Error.
    """
    lines = ["" if line.startswith("#") else line for line in read_text(path).splitlines(keepends=True)]
    head = next(filter(str.strip, lines), "")
    return csv.reader(lines, delimiter=max(SEPARATORS, key=head.count))


SIZE: Final = 512
"""Bytes of the user block."""
MARK: Final = b"hpcdl trace sha256 "
LENGTH: Final = slice(40, 48)
"""Place of the length of the file in the superblock of HDF5 (version 0), which follows the user block."""


def write_checksum(path: Path) -> None:
    """Write the checksum of a closed file to its user block. Raises OSError."""
    line = MARK + _digest(path) + b"\n"
    with path.open("r+b") as file:
        file.write(line)


def verified_checksum(path: Path) -> str | None:
    """Return the checksum of a trace whose contents match it; None for any other file. Raises OSError."""
    size = check_regular(path)
    with path.open("rb") as file:
        head = file.read(SIZE + LENGTH.stop)
    # a sparse file of many GB is not read
    is_whole = head.startswith(MARK) and int.from_bytes(head[SIZE:][LENGTH], "little") == size
    digest = _digest(path) if is_whole else b""
    return digest.decode() if digest and head[len(MARK) : SIZE].split(b"\n")[0] == digest else None


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(SIZE)
        return hashlib.file_digest(file, "sha256").hexdigest().encode()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on exit fsync the file, rename it to ``path`` and fsync the directory.

    The file is new and its name unpredictable. The yielded path leads to its descriptor, so that no link in a
    shared folder is followed. The name ends in ``.partial``, so that patterns for finished files do not match it.
    If the body raises, ``path`` is unchanged. Raises OSError.
    """
    temporary = path.with_name(f".{os.urandom(8).hex()}.partial")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
        os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


Record = TypeVar("Record")


def from_json(kind: type[Record], value: object, place: str = "") -> Record:
    """Return ``value``, parsed JSON, as ``kind``, often a dataclass. Raises ValueError, which names the place."""
    try:
        return _converter(kind)(value)  # type: ignore[return-value, arg-type]
    except _MisfitError as error:
        path = "".join(reversed(error.path))
        raise ValueError(f"{place or kind.__name__}{path}: not a {error.kind}") from None


class _MisfitError(Exception):
    """A value that is not of its kind; the places around it add themselves to the path."""

    def __init__(self, kind: Any) -> None:
        self.kind = getattr(kind, "__name__", kind)
        self.path = list[str]()


@cache  # an archive has millions of values, of few kinds
def _converter(kind: Any) -> Callable[[object], object]:
    """Return the function that converts parsed JSON to ``kind``. It raises _MisfitError."""
    if kind is Any:
        return lambda value: value
    origin, inside = get_origin(kind), get_args(kind)
    if Any in inside:  # the table of a run has millions of values, none of which is converted
        kind, origin = origin, None
    if isinstance(kind, UnionType):
        inner = [member for member in inside if member is not type(None)]
        convert, optional = _converter(inner[0]), len(inner) < len(inside)
        return lambda value: None if optional and value is None else convert(value)
    if origin is dict:
        convert = _converter(inside[1])
        return lambda value: _each(kind, value, dict, lambda _key: convert)
    if origin in {tuple, list}:
        convert = _converter(inside[0])
        return lambda value: origin(_each(kind, value, list, lambda _number: convert).values())
    if is_dataclass(kind):
        converters = {name: _converter(hint) for name, hint in get_type_hints(kind).items()}
        required = {each.name for each in fields(kind) if each.default is each.default_factory is MISSING}

        def record(value: object) -> object:
            if not isinstance(value, dict) or not required <= value.keys() <= converters.keys():
                raise _MisfitError(kind)
            return kind(**_each(kind, value, dict, converters.__getitem__))  # type: ignore[operator]

        return record

    def leaf(value: object) -> object:
        if type(value) is str and kind is str:
            return sys.intern(value)  # runs of an archive repeat names
        if type(value) is kind or (kind is float and type(value) is int):
            return value
        raise _MisfitError(kind)

    return leaf


def _each(
    kind: Any, value: object, container: type, converter: Callable[[Any], Callable[[object], object]]
) -> dict[Any, object]:
    """Return the converted items of a dict or list by key or number."""
    if not isinstance(value, container):
        raise _MisfitError(kind)
    converted = {}
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):  # type: ignore[arg-type]
        try:
            converted[key] = converter(key)(item)
        except _MisfitError as error:
            error.path.append(f"[{key}]" if container is list else f".{key}")
            raise
    return converted


_ROLES: Final = {"servers", "dedicated"}
STRATEGY_SETTINGS: Final[dict[str, set[str]]] = {
    "asynchronous": {"delay_compensation", "strength"} | _ROLES,
    "softsync": {"collect", "scale_rate"} | _ROLES,
    "m_synchronous": {"collect", "stale", "dedicated"},
    "ssp": {"bound", "collect", "push"} | _ROLES,
    "downpour": {"n_fetch", "n_push", "overlap", "local_rate", "warm_start"} | _ROLES,
}
"""Settings of the older ``asynchronous`` that each strategy has; a case is of the first that has all its."""
_DEFAULTS: Final = {
    **dict.fromkeys(("collect", "n_fetch", "n_push", "servers"), "1"),
    **dict.fromkeys(("overlap", "dedicated"), "False"),
    **dict.fromkeys(("scale_rate", "delay_compensation"), "none"),
    "local_rate": "1.0",
    "warm_start": "0",
    "stale": "apply",
    "push": "gradients",
}
_LABEL: Final = re.compile(r"(?<![\w:.])asynchronous\(([^()]*)\)")
_TABLE: Final = re.compile(r'\{"name": "asynchronous"[^{}]*\}')


def spelled_now(text: str) -> str:
    """Return a text of a run or an archive with the present names of strategies, in labels and tables of JSON.

    A combination that no strategy has any more keeps its older name.
    """
    if "asynchronous" not in text:
        return text
    text = _LABEL.sub(_label, text)
    return _TABLE.sub(lambda match: json.dumps(_renamed(json.loads(match[0]))), text)


def _label(match: re.Match[str]) -> str:
    pairs = [pair.partition("=") for pair in match[1].split(",") if pair]
    now = _renamed({key: value for key, _, value in pairs})
    inside = ",".join(f"{key}={value}" for key, value in now.items() if key != "name")
    return f"{now['name']}({inside})" if inside else str(now["name"])


def _renamed(older: JsonMapping) -> JsonObject:
    """Return the name and the settings of a strategy; values of ``older`` are those of a suite, or their texts."""
    values = {key: value for key, value in older.items() if key != "name"}
    changed = {key for key, value in values.items() if str(value) != _DEFAULTS.get(key)}
    for name, settings in STRATEGY_SETTINGS.items():
        if changed <= settings and (name != "ssp" or "bound" in changed):
            collect = {"collect": 1} if name in {"softsync", "m_synchronous"} else {}
            kept = {key: value for key, value in values.items() if key in settings - {"stale"}}
            return {"name": name, **(kept if "collect" in kept else collect | kept)}
    return {"name": "asynchronous", **values}
