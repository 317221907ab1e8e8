#!/usr/bin/env python3
"""A GGUF with every matrix in another type, made from the dequantised weights: F32 for llama.cpp to compute exactly, Q8_0 for
a file of more bytes than a cache holds. Needs the gguf package.

    ~/.cache/baton/bench/llama/bin/python tools/gguf_retype.py IN.gguf OUT.gguf F32|Q8_0
"""
import sys

import gguf
import numpy as np

FILE_TYPES = {"F32": gguf.LlamaFileType.ALL_F32, "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}


def copy_fields(reader, writer):
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=sub)


def converted(tensor, kind):
    """The tensor's values row by row; vectors stay F32."""
    shape = [int(n) for n in reversed(tensor.shape)]
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
    if kind == "F32" or len(shape) < 2:
        return values, gguf.GGMLQuantizationType.F32
    to = gguf.GGMLQuantizationType[kind]
    return gguf.quants.quantize(values, to), to


def retype(path, out, kind):
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents(), use_temp_file=True)
    copy_fields(reader, writer)
    writer.add_file_type(FILE_TYPES[kind])
    for t in reader.tensors:
        values, to = converted(t, kind)
        writer.add_tensor(t.name, values, raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[3] not in FILE_TYPES:
        sys.exit(__doc__)
    retype(*sys.argv[1:])
