#!/usr/bin/env python3
"""Writes local/types_proto.c: the protobuf field numbers of the built-in types in local/types_*.c.

Numbers come from the generated.proto files of k8s.io/api and k8s.io/apimachinery, found in a Go module cache:
    tools/k8s_proto_fields.py ~/go/pkg/mod/k8s.io v0.37.2 > local/types_proto.c
"""
import glob
import re
import sys


def proto_messages(root, version):
    out = {}
    for path in glob.glob(f"{root}/*@{version}/**/generated.proto", recursive=True):
        text = re.sub(r"//.*", "", open(path).read())
        package = re.search(r"^package ([\w.]+);", text, re.M).group(1).replace("k8s.io.", "io.k8s.", 1)
        for name, body in re.findall(r"^message (\w+) \{(.*?)^\}", text, re.M | re.S):
            fields = re.findall(r"(?:optional|repeated|map<[^>]*>)[^;=]*?(\w+) = (\d+)", body)
            out[f"{package}.{name}"] = [(int(n), f) for f, n in fields]
    return out


def our_types():
    package = ""
    for path in ("local/types_core.c", "local/types_more.c"):
        text = re.sub(r'"\s*\n\s*"', "", open(path).read())
        for line in re.findall(r'^    "((?:[^"\\]|\\.)*)",', text, re.M):
            if line.startswith("@"):
                package = line[1:].split()[0]
                continue
            words = line.lstrip("*~").split()
            fields = {w.split(":")[0] for w in words[1:]}
            if line.startswith("*"):
                fields |= {"metadata"}
            yield package, words[0], fields


def main():
    messages = proto_messages(sys.argv[1], sys.argv[2])
    print("/* Protobuf field numbers of the built-in types; written by tools/k8s_proto_fields.py from k8s.io/api")
    print(f" * {sys.argv[2]}. One string a type: its name, then number and field in turn. */")
    print('#include "local/proto.h"\n')
    print("const char *const proto_table[] = {")
    for package, name, fields in our_types():
        full = f"{package}.{name}"
        if full not in messages:
            print(f"no message for {full}", file=sys.stderr)
            continue
        words = [full]
        for number, field in messages[full]:
            if field in fields:
                words += [str(number), field]
        line, lines = "", []
        for word in words:
            if len(line) + len(word) > 88:
                lines.append(line)
                line = ""
            line += word + " "
        lines.append(line.rstrip())
        print("    " + "\n    ".join(f'"{x}"' for x in lines) + ",")
    print("    NULL,\n};")


main()
