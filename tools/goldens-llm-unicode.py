#!/usr/bin/env python3
"""Writes lib/llm/unicode_later.c: code points whose general category is known to Hugging Face tokenizers' regex engine but
not to the Unicode 14 tables of Debian 12's PCRE2 (and of this Python's unicodedata). Needs: tokenizers. Usage:
  tools/goldens-llm-unicode.py > lib/llm/unicode_later.c"""
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
NAMES = ["L", "Lu", "Ll", "Lm", "Lo", "N", "Nd", "No", "M", "Mn", "Mc", "P", "S"]


def matched(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    left = set(CODE_POINTS)
    for at in range(0, len(CODE_POINTS), 4096):
        text = "".join(map(chr, CODE_POINTS[at : at + 4096]))
        for piece, _ in split.pre_tokenize_str(text):
            left.difference_update(map(ord, piece))
    return left


def digits():
    """What the Digits pre-tokenizer cuts out (Rust's char::is_numeric)."""
    found = set()
    split = pre_tokenizers.Digits(individual_digits=True)
    for c in CODE_POINTS:
        if c >= 0x80 and len(split.pre_tokenize_str("a" + chr(c))) == 2:
            found.add(c)
    return found


def unknown_to_normalizers(all_marks):
    """Combining characters that Hugging Face's normalizers (Unicode 9) leave where they are."""
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    out = set()
    for c in CODE_POINTS:
        ch = chr(c)
        probe = "a" + ch + "\u0334"
        if unicodedata.category(ch) == "Cn":
            if c in all_marks and nfc(probe) == probe:
                out.add(c)
        elif unicodedata.combining(ch) > 1 and nfc(probe) != unicodedata.normalize("NFC", probe):
            out.add(c)
        elif nfd(ch) == ch and unicodedata.normalize("NFD", ch) != ch:
            out.add(c)
    return out


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def main():
    assert unicodedata.unidata_version == "14.0.0", "run with a Python that has Unicode 14 tables (3.11)"
    print("/* Made by tools/goldens-llm-unicode.py: characters assigned after Unicode 14 (PCRE2 10.42), which Hugging Face")
    print(" * tokenizers classifies. Do not edit. */")
    print('#include "lib/llm/unicode_later.h"\n')
    sets = {}
    for name in NAMES:
        old = {c for c in CODE_POINTS if unicodedata.category(chr(c)).startswith(name)}
        sets[name] = matched("\\p{%s}" % name) - old
    sets["is_numeric"] = digits() - {c for c in CODE_POINTS if unicodedata.category(chr(c)).startswith("N")}
    sets["unnormalized"] = unknown_to_normalizers(matched("\\p{M}"))
    for name, points in sets.items():
        print("static const struct unicode_range range_%s[] = {" % name)
        for a, b in ranges(points):
            print("    {0x%x, 0x%x}," % (a, b))
        print("};")
    print("\nconst struct unicode_set unicode_later[] = {")
    for name, points in sets.items():
        print('    {"%s", range_%s, %d},' % (name, name, len(ranges(points))))
    print("    {0},\n};")


if __name__ == "__main__":
    main()
