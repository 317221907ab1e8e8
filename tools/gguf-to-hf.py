#!/usr/bin/env python3
"""The weights of a GGUF file as bf16 safetensors with Hugging Face's config and tokenizer, for servers that read no GGUF.

    ~/.cache/baton/bench/vllm/bin/python tools/gguf-to-hf.py MODEL.gguf FOLDER

What the file's quantisation lost stays lost: the folder holds the values that the GGUF stands for, rounded to bf16.
"""
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main():
    source, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16,
                                                 quantization_config=GgufConfig(dequantize=True))
    # transformers remembers that the weights came quantised and would say so in config.json, which they no longer are.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer, model.is_quantized, model._is_quantized = None, False, False
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    print(f"{folder}: {type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
