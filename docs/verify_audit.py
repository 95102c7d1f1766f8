#!/usr/bin/env python3
"""Checks audit segments (*.sqlite, with their *.rows) and exports (*.jsonl). It relies only on docs/audit.md.

usage: verify_audit.py FILE... [--head SEGMENT:COUNT:HEAD]      exit code 1 when something is wrong
"""
import hashlib, json, os, re, sqlite3, sys

LINE = re.compile(rb'\{"(?:head":"([0-9a-f]{64})","(header|row)|digest":"([0-9a-f]{64})","(checkpoint))":(.*)\}\n', re.S)

def sha(tag, *parts):
    return hashlib.sha256(bytes([tag]) + b"".join(parts)).digest()

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

def verify(path, expected, wrong, instances=None):
    calls, instances = {}, {} if instances is None else instances
    name, head, count, number, tree, sealed, seen = "", b"", 0, 1, [], False, {}
    for kind, seq, text, stored in (from_export if path.endswith(".jsonl") else from_database)(path):
        body = json.loads(text)
        if kind == "header":
            name, head, count, number, tree, sealed = body["segment"], sha(3, text), 0, body["first"], [], False
            if stored != head: wrong(name, "the header was changed")
            form, index, before = body["format"], body["index"], instances.get(body["instance"], {})
            if form not in (1, 2): wrong(name, "unknown format")
            calls = instances[body["instance"]] = before if before.get("index") == index - 1 else {"from": number}
            calls["index"] = index
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
            sealed = sealed or body["sealed"]
    if not name: wrong(path, "there is no header")
    for segment, rows, kept in expected:
        if segment == name and seen.get((segment, int(rows))) != kept: wrong(name, f"not the kept head after {rows} rows")

if __name__ == "__main__":
    found, files, heads, instances = [], sys.argv[1:], [], {}
    while "--head" in files: heads.append(files.pop(files.index("--head") + 1).split(":")); files.remove("--head")
    for file in files:
        try: verify(file, heads, lambda *what: found.append(": ".join(what)), instances)
        except Exception as error: found.append(f"{file}: cannot be read as written: {error}")
    print("\n".join(found) or "everything is as it was written")
    sys.exit(1 if found else 0)
