#!/usr/bin/env python3
"""Makes tests/golden/engine/<model>.jsonl: greedy continuations by llama.cpp, that the engine's are compared with.

Each line after the first is one prompt: its token ids, llama.cpp's 64 greedy tokens, for each of them the distance of its
two best logits, and `self`: the first token at which llama.cpp with flash attention on (its server's default) writes
something else than llama.cpp with it off (64: nowhere). llama.cpp rounds activations to 8 bits, and any change in the order
of its sums moves logits by 0.1, so `self` tells how far equality with llama.cpp can mean anything. The first line names the
model file's SHA-256 and llama.cpp's system_info. Needs llama-cpp-python; run it with the interpreter that has it:

    ~/.cache/baton/ref-venv/bin/python tools/goldens-engine.py smollm2 MODEL.gguf
"""
import ctypes
import hashlib
import json
import os
import sys

import llama_cpp
import numpy as np

TEXTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "The three states of matter are",
    "To make a simple omelette, first",
    "In 1969, the Apollo 11 mission",
    "Photosynthesis is the process by which",
    "Q: What is the largest planet in the solar system?\nA:",
    "The quick brown fox jumps over the lazy dog. The lazy dog",
    "#include <stdio.h>\n\nint main(void)\n{\n",
    "List of primary colours:\n1.",
    "Dear Sir or Madam,\n\nI am writing to",
    "The French Revolution began in",
    "Machine learning is a field of study that",
    "SELECT name, age FROM users WHERE",
    "Le chat est assis sur",
    "Der schnellste Weg, eine Sprache zu lernen,",
    "The mitochondria is the",
    "Shakespeare wrote many plays, including",
    "An apple a day keeps",
    "Roses are red,\nViolets are blue,\n",
    "The stock market fell sharply today after",
    "If a train travels at 60 miles per hour for 3 hours, it covers",
    "The human heart has four chambers:",
    "Abstract. We present a new method for",
    "<html>\n<head>\n<title>",
    "import numpy as np\n\nx = np.",
    "Mount Everest is located in",
    "The recipe calls for two cups of flour, one cup of sugar, and",
    "During the Second World War, the city of London",
    "A good night's sleep is important because",
    "The speed of light in a vacuum is approximately",
    "\"I don't know what you mean,\" said Alice.",
    "Global warming refers to",
    "The Pythagorean theorem states that",
    "Monday, Tuesday, Wednesday,",
    "2, 4, 6, 8, 10,",
    "The president of the company announced that",
    "In computer science, a hash table is",
    "El perro corre por",
    "Penguins are birds that cannot",
    "The Great Wall of China was built",
    "To install the package, run the following command:",
    "The chemical symbol for gold is",
    "My favourite season is autumn because",
    "Gravity is the force that",
    "The old man looked at the sea and",
]
QUESTIONS = [
    "What is the capital of France?",
    "Write a short poem about the moon.",
    "Explain gravity to a child.",
    "Give me three tips for better sleep.",
    "What is 12 times 9?",
    "Name five fruits.",
    "Why is the sky blue?",
    "Summarise the plot of Romeo and Juliet in two sentences.",
    "Write a Python function that reverses a string.",
    "What should I cook for dinner tonight?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Pride and Prejudice?",
]
N_TOKENS = 64


def best_two(llm):
    n = llm.n_vocab()
    p = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    logits = np.ctypeslib.as_array(ctypes.cast(p, ctypes.POINTER(ctypes.c_float)), shape=(n,))
    two = np.argpartition(-logits, 2)[:2]
    a, b = sorted(two, key=lambda i: (-logits[i], i))
    return int(a), float(logits[a] - logits[b])


def greedy(llm, ids):
    llm.reset()
    llm.eval(ids)
    out, gaps = [], []
    for i in range(N_TOKENS):
        token, gap = best_two(llm)
        out.append(token)
        gaps.append(round(gap, 4))
        if i + 1 < N_TOKENS:
            llm.eval([token])
    return out, gaps


def first_difference(llm, ids, tokens):
    llm.reset()
    llm.eval(ids)
    for i, want in enumerate(tokens):
        if best_two(llm)[0] != want:
            return i
        llm.eval([want])
    return len(tokens)


def prompts(name, llm):
    bos = name.startswith("gemma")
    for text in TEXTS:
        yield llm.tokenize(text.encode(), add_bos=bos, special=False)
    if name.startswith("smollm2"):
        for q in QUESTIONS:
            chat = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                    f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n")
            yield llm.tokenize(chat.encode(), add_bos=False, special=True)


def main():
    name, path = sys.argv[1], sys.argv[2]
    llm, flash = (llama_cpp.Llama(path, n_ctx=512, n_threads=1, n_threads_batch=1, logits_all=False, verbose=False,
                                  flash_attn=on) for on in (False, True))
    head = {
        "model": os.path.basename(path),
        "sha256": hashlib.sha256(open(path, "rb").read()).hexdigest(),
        "llama_cpp_python": llama_cpp.__version__,
        "system_info": llama_cpp.llama_print_system_info().decode(),
    }
    out = os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "engine", name + ".jsonl")
    with open(out, "w") as f:
        f.write(json.dumps(head) + "\n")
        for ids in prompts(name, llm):
            tokens, gaps = greedy(llm, ids)
            line = {"ids": ids, "self": first_difference(flash, ids, tokens), "out": tokens, "gaps": gaps}
            f.write(json.dumps(line, separators=(",", ":")) + "\n")
            f.flush()


if __name__ == "__main__":
    main()
