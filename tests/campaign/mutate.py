"""Damage to bytes, text and JSON: a generator of random numbers in, something hostile out."""

import struct

EXTREMES = (
    0,
    1,
    2,
    255,
    256,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
NUMBERS = (
    "0",
    "-1",
    "65536",
    "2147483647",
    "4294967296",
    "9223372036854775807",
    "9" * 30,
    "1e999",
    "nan",
    "7.5",
)
VALUES = (
    None,
    True,
    False,
    0,
    1,
    -1,
    7.5,
    2**31,
    2**63,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "7",
    "x" * 3000,
    "../../x",
    "two\nlines",
    "\x1b[2J",
    "\ud800",
    [],
    {},
    [[]],
    [0] * 50,
    {"a": {}},
    [None],
    [1, 2, 3],
)


def place(data, random, width=1):
    """Somewhere, headers and ends more often than their share."""
    last = max(len(data) - width, 0)
    near = min(256, last)
    return min(
        last,
        random.choice(
            (random.randint(0, near), random.randint(0, last), last - random.randint(0, near))
        ),
    )


def flip(data, random):
    """One to four bits."""
    changed_bytes = bytearray(data)
    for _ in range(random.randint(1, 4) if changed_bytes else 0):
        changed_bytes[place(data, random)] ^= 1 << random.randrange(8)
    return bytes(changed_bytes)


def flip_one(data, random):
    """One bit, anywhere with equal chance."""
    changed_bytes = bytearray(data)
    changed_bytes[random.randrange(len(changed_bytes))] ^= 1 << random.randrange(8)
    return bytes(changed_bytes)


def truncate(data, random):
    """The beginning alone."""
    return data[: place(data, random)]


def inflate(data, random):
    """A number in the file, of 1 to 8 bytes and either order, becomes an extreme one."""
    width = random.choice((1, 2, 4, 4, 4, 8))
    value = random.choice(EXTREMES) % (1 << 8 * width)
    at = place(data, random, width)
    at -= at % random.choice((1, width))
    number = value.to_bytes(width, random.choice(("little", "big")))
    return data[:at] + number + data[at + width :]


def splice(data, random):
    """A piece cut out, repeated, zeroed or replaced."""
    at = place(data, random)
    length = random.choice((1, 4, 16, 512, len(data) // 2))
    piece = data[at : at + length]
    new = random.choice(
        (b"", piece * random.randint(2, 20), bytes(len(piece)), random.randbytes(len(piece) or 3))
    )
    return data[:at] + new + data[at + length :]


def renumber(data, random):
    """A run of digits becomes another number, in a header of text or anywhere."""
    digits = [i for i, c in enumerate(data[:4096]) if 48 <= c < 58]
    if not digits:
        return inflate(data, random)
    start = end = random.choice(digits)
    while end < len(data) and 48 <= data[end] < 58:
        end += 1
    new = random.choice((*NUMBERS, "8" * 5000)).encode()
    return data[:start] + new + data[end:]


BYTES = {
    "bit flips": flip,
    "truncation": truncate,
    "lengths": inflate,
    "splices": splice,
    "numbers": renumber,
    "one bit": flip_one,
}


def nodes(value, path=()):
    """The path of every part of a JSON value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    paths = [path]
    for key, part in inner:
        paths += nodes(part, (*path, key))
    return paths


def put(value, path, new):
    """A copy with another value at a path."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = put(
        copy[path[0]] if not isinstance(copy, dict) or path[0] in copy else {}, path[1:], new
    )
    return copy


def edit(value, random):
    """A JSON value of which one part is replaced, dropped, added or scaled."""
    path = random.choice(nodes(value)[1:] or [()])
    part = value
    for key in path:
        part = part[key]
    kind = random.choice(("replace", "replace", "drop", "add", "scale"))
    if kind == "scale" and isinstance(part, int | float) and not isinstance(part, bool):
        return put(
            value,
            path,
            part * random.choice((-1, 0, 2, 10, 1000, 10**9)) + random.choice((0, 0, 1)),
        )
    if kind == "add" and isinstance(part, dict):
        return put(
            value,
            path,
            part | {random.choice(("x", "seed", "__class__", "")): random.choice(VALUES)},
        )
    if kind == "drop" and path:
        *above, last = path
        part = value
        for key in above:
            part = part[key]
        remaining = (
            {k: v for k, v in part.items() if k != last} if isinstance(part, dict) else part[:last]
        )
        return put(value, above, remaining)
    return put(value, path, random.choice(VALUES))


def changed(value, changes):
    """A JSON value with parts set by paths such as "options.channels"."""
    for path, new in changes.items():
        value = put(value, [int(key) if key.isdigit() else key for key in path.split(".")], new)
    return value


def nested(depth):
    """JSON so deep that a parser that recurses gives up."""
    return "[" * depth + "]" * depth


def unpacked(data):
    """Header (as text) and payload of a safetensors file."""
    size = struct.unpack("<Q", data[:8])[0]
    return data[8 : 8 + size].decode(), data[8 + size :]


def packed(header, payload):
    """The inverse of `unpacked`."""
    text = header.encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + payload
