#!/usr/bin/env python3
"""Checks audit segments (*.sqlite, with their *.rows) and exports (*.jsonl). It relies only on docs/audit.md.

usage: verify_audit.py FILE... [--head SEGMENT:COUNT:HEAD] [--checkpoints FILE] [--key FILE]      exit code 1 when something is wrong

With --key (a file with a public key in hexadecimal; may be repeated), every checkpoint must be signed with one of the keys.
"""
import hashlib, json, os, re, sqlite3, sys

LINE = re.compile(rb'\{"(?:head":"([0-9a-f]{64})","(header|row)|digest":"([0-9a-f]{64})","(checkpoint))":(.*)\}\n', re.S)

def sha(tag, *parts):
    return hashlib.sha256(bytes([tag]) + b"".join(parts)).digest()

P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493  # Ed25519, RFC 8032
D, ROOT = -121665 * pow(121666, -1, P) % P, pow(2, (P - 1) // 4, P)

def plus(one, two):
    a, b = (one[1] - one[0]) * (two[1] - two[0]) % P, (one[1] + one[0]) * (two[1] + two[0]) % P
    c, d = 2 * one[3] * two[3] * D % P, 2 * one[2] * two[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P

def times(number, point):
    result = 0, 1, 1, 0
    while number:
        if number & 1: result = plus(result, point)
        point, number = plus(point, point), number >> 1
    return result

def point(data):
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P: x = x * ROOT % P
    if y >= P or (x * x - square) % P or (x == 0 and sign): return None
    if x & 1 != sign: x = P - x
    return x, y, 1, x * y % P

def is_signed(statement, key, signature):
    key, signature = bytes.fromhex(key), bytes.fromhex(signature)
    public, start, scalar = point(key), point(signature[:32]), int.from_bytes(signature[32:], "little")
    if None in (public, start) or len(signature) != 64 or scalar >= ORDER: return False
    digest = int.from_bytes(hashlib.sha512(signature[:32] + key + statement).digest(), "little") % ORDER
    one, two = times(scalar, point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))), plus(start, times(digest, public))
    return (one[0] * two[2] - two[0] * one[2]) % P == 0 == (one[1] * two[2] - two[1] * one[2]) % P

def unsigned(body, keys):  # what is wrong with the signature of a checkpoint, or of the note of a removal
    key, signature = body.get("key"), body.get("signature")
    if None in (key, signature): return "is not signed" if keys else None
    if keys and key not in keys: return "is signed with another key"
    if "removed" in body: said = ["removal 1"] + [body.get(name, "") for name in ("removed", "time", "count", "head", "sealed", "reason", "by")]
    else: said = ["checkpoint 1"] + [body[name] for name in ("segment", "count", "root", "head", "time")] + [json.dumps(body["sealed"])]
    said[0] = "bridgehead audit " + said[0]
    return None if is_signed("".join(f"{line}\n" for line in said).encode(), key, signature) else "has a wrong signature"

def from_database(path):
    journal = path.removesuffix(".sqlite") + ".rows"  # read first: rows move from it to the database
    newest = list(from_export(journal)) if os.path.exists(journal) else []
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    read = lambda sql: database.execute(sql).fetchall()
    for text, head in read("SELECT CAST(body AS BLOB), head FROM segment ORDER BY id"):
        yield "header", None, text, head
    points = read("SELECT count, CAST(body AS BLOB), digest FROM checkpoints ORDER BY count, rowid")
    rows = read("SELECT seq, CAST(body AS BLOB), head FROM rows ORDER BY seq")
    for at, row in enumerate(rows + [row for _, *row in newest if not rows or row[0] > rows[-1][0]]):
        yield "row", *row
        while points and points[0][0] <= at + 1:
            yield "checkpoint", *points.pop(0)
    for point in points:
        yield "checkpoint", *point

def cut_short(line):  # False for a whole record whose last byte was changed
    try: return not json.loads(LINE.fullmatch(line[:-1] + b"\n")[5])
    except (TypeError, ValueError): return True

def from_export(path):
    for number, line in enumerate(open(path, "rb"), 1):
        # The process was killed while it wrote this line, so no call was answered that depends on it.
        if path.endswith(".rows") and line[-1:] != b"\n" and cut_short(line): return
        found = LINE.fullmatch(line)
        if not found: raise ValueError(f"line {number} is not a record")
        kind, text, digits = (found[2] or found[4]).decode(), found[5], (found[1] or found[3]).decode()
        yield kind, json.loads(text)["seq"] if kind == "row" else None, text, bytes.fromhex(digits)

def is_pair(calls, form, index, body):  # an exit belongs to the enter that it names by number
    call = body["correlationId"], body["tool"]
    if body["kind"] == "enter": calls[body["seq"]] = index, call
    enter = body.get("enter")
    if enter is None or enter < calls["from"]: return True
    segment, entered = calls.pop(enter, (None, None))
    return entered == call and (form == 1 or body.get("enterSegment") == segment)

def verify(path, expected, wrong, instances=None, keys=()):
    calls, instances = {}, {} if instances is None else instances
    closed = path.endswith(".sqlite") and not os.path.exists(path.removesuffix(".sqlite") + ".rows")  # nobody writes it
    name, head, count, covered, number, tree, sealed, seen = "", b"", 0, 0, 1, [], False, {}
    for kind, seq, text, stored in (from_export if path.endswith(".jsonl") else from_database)(path):
        body = json.loads(text)
        if kind == "header":
            name, head, count, number, tree, sealed = body["segment"], sha(3, text), 0, body["first"], [], False
            if stored != head: wrong(name, "the header was changed")
            form, index, before = body["format"], body["index"], instances.get(body["instance"], {})
            if form not in (1, 2): wrong(name, "unknown format")
            calls = instances[body["instance"]] = before if before.get("index") == index - 1 else {"from": number}
            calls["index"] = index
            if before.get("open") and keys: wrong(before["open"], f"no key signed its end, and {name} follows it")
        elif kind == "row":
            leaf = sha(0, text)
            head = sha(2, head, leaf)
            if sealed: wrong(name, f"row {seq} was added after the seal")
            if (seq, body["seq"], stored) != (number, number, head): wrong(name, f"row {number} was changed or removed")
            elif calls and not is_pair(calls, form, index, body): wrong(name, f"row {seq} is not the end of the call it names")
            number, head, count, node = seq + 1, stored, count + 1, leaf
            for _ in range(((count - 1) ^ count).bit_length() - 1): node = sha(1, tree.pop(), node)
            tree.append(node)
            seen[name, count] = head.hex()
        else:
            root = tree[-1] if tree else hashlib.sha256().digest()
            for left in tree[-2::-1]: root = sha(1, left, root)
            stated = (body["segment"], body["count"], body["root"], body["head"])
            if stored != sha(4, text) or seq not in (None, count) or stated != (name, count, root.hex(), head.hex()):
                wrong(name, f"the checkpoint after {body['count']} rows does not fit")
            if (what := unsigned(body, keys)): wrong(name, f"the checkpoint after {body['count']} rows {what}")
            sealed, covered = sealed or body["sealed"], covered if what else count
    if not name: wrong(path, "there is no header")
    if closed and count and not sealed: wrong(name, "its seal is missing, and it has no journal")
    if keys and count - covered > 65536: wrong(name, f"no key signed its last {count - covered} rows")
    calls["open"] = None if sealed or closed else name
    for segment, rows, kept in expected:
        if segment == name and seen.get((segment, int(rows))) != kept: wrong(name, f"not the kept head after {rows} rows")

if __name__ == "__main__":
    found, files, instances = [], sys.argv[1:], {}
    def option(name):
        while name in files: yield files.pop(files.index(name) + 1); files.remove(name)
    heads, keys = [head.split(":") for head in option("--head")], [open(file).read().strip() for file in option("--key")]
    notes, lines = {}, [json.loads(line) for file in option("--checkpoints") for line in open(file)]
    for kept in lines:
        if (what := unsigned(kept, keys)): found.append(f"the kept line about {kept.get('segment') or kept['removed']} {what}")
        elif "removed" in kept: notes[kept["removed"]] = kept
        else: heads.append([kept["segment"], str(kept["count"]), kept["head"]])
    for segment, rows, head in heads if lines else []:
        note = notes.get(segment)
        fits = note and (int(rows) < note.get("count", int(rows) + 1) or (int(rows), head) == (note["count"], note["head"]))
        if not fits and all(segment not in os.path.basename(file) for file in files): found.append(f"{segment}: is missing")
    for file in files:
        try: verify(file, heads, lambda *what: found.append(": ".join(what)), instances, keys)
        except Exception as error: found.append(f"{file}: cannot be read as written: {error}")
    print("\n".join(found) or "everything is as it was written")
    sys.exit(1 if found else 0)
