"""Second implementation of hash scheme 2 (crates/filter/src/hash.rs): writes hash-v2.csv.

    python3 hash_v2.py > hash-v2.csv

Fields: type, value, seed (hex), hash (hex). Keys of several columns join types and values with '+'.
Types: units, decimal scales, time zones and widths in brackets, dictionaries as
Dictionary(index type;value type). Values: integers and unscaled decimals in decimal, floats as the hex
bits of their own width, text as it is, binary as hex. NULL is written \\N.
"""

import struct

M = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
SECRET = [
    0x2D358DCCAA6C78A5, 0x8BB84B93962EACC9, 0x4B33A62ED433D4A3, 0x4D5A2DA51DE1AA47,
    0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x90ED1765281C388C,
]


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M
    return x ^ (x >> 31)


def k(seed, i):
    return mix((seed + i * GOLDEN) & M)


def fold(a, b):
    product = a * b
    return (product & M) ^ (product >> 64)


def rapidhash_v3(data, seed):
    u64 = lambda at: struct.unpack_from("<Q", data, at)[0]
    u32 = lambda at: struct.unpack_from("<I", data, at)[0]
    n = len(data)
    seed ^= fold(seed ^ SECRET[2], SECRET[1])
    a = b = 0
    rest = n
    if n <= 16:
        if n >= 4:
            seed ^= n
            a, b = (u64(0), u64(n - 8)) if n >= 8 else (u32(0), u32(n - 4))
        elif n > 0:
            a, b = (data[0] << 45) | data[n - 1], data[n >> 1]
    else:
        at = 0
        if n > 112:
            see = [seed] * 7
            while n - at > 112:
                for i in range(7):
                    see[i] = fold(u64(at + 16 * i) ^ SECRET[i], u64(at + 16 * i + 8) ^ see[i])
                at += 112
            seed = 0
            for s in see:
                seed ^= s
        rest = n - at
        for i, secret in enumerate([2, 2, 1, 1, 2, 1]):
            if rest > 16 * (i + 1):
                seed = fold(u64(at + 16 * i) ^ SECRET[secret], u64(at + 16 * i + 8) ^ seed)
        a, b = u64(n - 16) ^ rest, u64(n - 8)
    product = (a ^ SECRET[1]) * (b ^ seed)
    a, b = product & M, product >> 64
    return fold(a ^ 0xAAAAAAAAAAAAAAAA, b ^ SECRET[1] ^ rest)


def widen(bits, width):
    value = struct.unpack({16: "<e", 32: "<f", 64: "<d"}[width],
                          bits.to_bytes(width // 8, "little"))[0]
    if value != value:
        return 0x7FF8000000000000
    return 0 if value == 0 else struct.unpack("<Q", struct.pack("<d", value))[0]


def column(kind, value, seed):
    k1 = k(seed, 1)
    if kind.startswith("Dictionary"):
        return column(kind[:-1].split(";")[1], value, seed)
    if kind.startswith("Float"):
        return mix(widen(int(value, 16), int(kind[5:])) ^ k1)
    if kind.startswith("Decimal"):
        v = int(value)
        count = next(c for c in (1, 2, 4) if -(1 << (64 * c - 1)) <= v < 1 << (64 * c - 1))
        limbs = [(v >> (64 * i)) & M for i in range(count)]
        h = mix(limbs[0] ^ k1)
        for limb in limbs[1:]:
            h = mix(h ^ limb)
        return h
    if kind in ("Utf8", "LargeUtf8", "Utf8View"):
        return rapidhash_v3(value.encode(), k(seed, 2))
    if kind in ("Binary", "LargeBinary", "BinaryView") or kind.startswith("FixedSizeBinary"):
        return rapidhash_v3(bytes.fromhex(value), k(seed, 2))
    return mix((int(value) & M) ^ k1)


def key(kinds, values, seed):
    return full_key(kinds, values, seed) & 0xFFFFFF00FFFFFFFF


def full_key(kinds, values, seed):
    if "\\N" in values:
        return k(seed, 4)
    hashes = [column(kind, value, seed) for kind, value in zip(kinds, values)]
    t = hashes[0]
    for h in hashes[1:]:
        t = mix((t * GOLDEN + h + k(seed, 3)) & M)
    return t


def vectors():
    for kind in ["Int8", "Int16", "Int32", "Int64"]:
        top = 1 << (int(kind[3:]) - 1)
        for v in [0, 1, -1, 42, top - 1, -top]:
            yield kind, str(v)
    for kind in ["UInt8", "UInt16", "UInt32", "UInt64"]:
        for v in [0, 1, (1 << int(kind[4:])) - 1]:
            yield kind, str(v)
    for v in [0, 1]:
        yield "Boolean", str(v)
    for kind in ["Date32", "Date64", "Time32(s)", "Time32(ms)", "Time64(us)", "Time64(ns)",
                 "Timestamp(s)", "Timestamp(ms)", "Timestamp(us)", "Timestamp(ns)",
                 "Timestamp(s;UTC)", "Timestamp(us;Europe/Zurich)",
                 "Duration(s)", "Duration(ms)", "Duration(us)", "Duration(ns)"]:
        for v in [0, 19000, -1]:
            yield kind, str(v)
    for v in ["0000", "8000", "3c00", "c500", "0001", "7c00", "7e00", "fe01"]:
        yield "Float16", v
    for v in ["00000000", "80000000", "3f800000", "3dcccccd", "00000001", "ff800000", "7fc00001"]:
        yield "Float32", v
    for v in ["0000000000000000", "8000000000000000", "3ff0000000000000", "3fb999999999999a",
              "7ff0000000000000", "7ff8000000000000", "fff8000000000001", "7ff4000000000000"]:
        yield "Float64", v
    small = [0, 1, -1, 12345]
    for kind, extra in [("Decimal32", []), ("Decimal64", [10**17]),
                        ("Decimal128", [10**17, (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 10**37]),
                        ("Decimal256", [10**17, 1 << 63, -(1 << 63) - 1, 10**37, (1 << 127) - 1, 1 << 127,
                                        -(1 << 127), -(1 << 127) - 1, 10**75, -(10**75)])]:
        for v in small + extra:
            yield kind, str(v)
    # Only the unscaled value counts: 1.00 of one scale hashes as 100 of another.
    for kind in ["Decimal32(9;2)", "Decimal64(18;4)", "Decimal128(38;0)", "Decimal128(38;10)", "Decimal256(76;-2)"]:
        for v in [100, -1]:
            yield kind, str(v)
    text = "the quick brown fox jumps over the lazy dog "
    for length in [0, 1, 2, 3, 4, 7, 8, 12, 13, 16, 17, 32, 33, 48, 64, 65, 80, 81, 96, 97, 112, 113,
                   128, 224, 225, 226, 337, 500]:
        yield "Utf8", ((text * 12)[:length].rstrip() + "x" * length)[:length]
    yield "Utf8", "Zürich"
    for v in ["00", "ff", "0000", "00ff80", "deadbeef", "00" * 20]:
        yield "Binary", v
    # The encoding does not count.
    for kind in ["Utf8", "LargeUtf8", "Utf8View", "Dictionary(Int32;Utf8)", "Dictionary(UInt8;LargeUtf8)",
                 "Dictionary(Int64;Utf8View)"]:
        for v in ["", "abc", "twelve bytes", "thirteen byte", "longer than a view holds inline"]:
            yield kind, v
    for kind in ["Binary", "LargeBinary", "BinaryView", "FixedSizeBinary(13)", "Dictionary(Int16;Binary)"]:
        yield kind, b"thirteen byte".hex()
    yield "FixedSizeBinary(16)", "00112233445566778899aabbccddeeff"
    yield "FixedSizeBinary(0)", ""
    for kind in ["Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"]:
        yield f"Dictionary({kind};Int64)", "-5"
    yield "Dictionary(Int32;Float64)", "8000000000000000"
    yield "Dictionary(Int32;Decimal128(38;2))", "100"
    yield "Dictionary(Int32;Utf8)", "\\N"
    yield "Int64+Int64", "1+2"
    yield "Int64+Int64", "2+1"
    yield "Int64+Int64", "1+1"
    yield "Int64+Int64", "1+\\N"
    yield "Int64+Utf8", "7+abc"
    yield "Utf8+Int64", "abc+7"
    yield "Utf8+Date32+Decimal128", "order+19000+" + str(10**30)
    yield "Int64", "\\N"


if __name__ == "__main__":
    print("type,value,seed,hash")
    for seed in [0, 0x0123456789ABCDEF]:
        for kinds, values in vectors():
            print(f"{kinds},{values},{seed:016x},{key(kinds.split('+'), values.split('+'), seed):016x}")
