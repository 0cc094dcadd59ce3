"""The demo drafter as its makers would publish it: a folder with config.json and model.safetensors."""
import json
import os
import struct

SIZES = {0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4), 6: ("f", 4), 7: ("?", 1),
         10: ("Q", 8), 11: ("q", 8), 12: ("d", 8)}
TYPES = {0: ("F32", 4), 30: ("BF16", 2)}
NAMES = {"enc.output_norm": "hidden_norm", "output_norm": "norm", "attn_norm": "input_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_conv_base": "attention_conv.base_kernel",
         "attn_conv_proj": "attention_conv.kernel_projection", "ffn_conv_base": "mlp_conv.base_kernel",
         "ffn_conv_proj": "mlp_conv.kernel_projection", "selector_hidden": "candidate_selector.hidden_projection",
         "selector_predecessor": "candidate_selector.predecessor_codebook",
         "selector_successor": "candidate_selector.successor_codebook"}


class Gguf:
    """The keys and tensors of a GGUF file: tensors[name] = (type, shape, bytes)."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        self.at = 8
        n_tensors, n_keys = self.take("Q"), self.take("Q")
        self.keys = {}
        for _ in range(n_keys):
            name = self.text()
            self.keys[name] = self.value(self.take("I"))
        heads = []
        for _ in range(n_tensors):
            name = self.text()
            shape = [self.take("Q") for _ in range(self.take("I"))]
            heads.append((name, shape, self.take("I"), self.take("Q")))
        start = self.at + -self.at % 32
        self.tensors = {}
        for name, shape, kind, offset in heads:
            n = TYPES[kind][1]
            for d in shape:
                n *= d
            self.tensors[name] = kind, shape, self.data[start + offset:start + offset + n]

    def take(self, code):
        v, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return v

    def text(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.take(SIZES[kind][0])
        inner, n = self.take("I"), self.take("Q")
        return [self.value(inner) for _ in range(n)]


def hf_name(name):
    stem = name[:-len(".weight")] if name.endswith(".weight") else name
    layer = stem.split(".")
    if layer[0] != "blk":
        new = NAMES.get(stem, stem)
    else:
        new = "layers.%s.%s" % (layer[1], NAMES[".".join(layer[2:])])
    return new if new.endswith(("_kernel", "_codebook")) else new + ".weight"


def write(gguf, folder, target_layers):
    """Writes the folder from a GGUF file of llama.cpp's layout; returns the paths of its two files."""
    g = Gguf(gguf)
    key = lambda name: g.keys["dflash." + name]
    os.makedirs(folder, exist_ok=True)
    config = {
        "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "hidden_size": key("embedding_length"),
        "num_hidden_layers": key("block_count"), "num_attention_heads": key("attention.head_count"),
        "num_key_value_heads": key("attention.head_count_kv"), "head_dim": key("attention.key_length"),
        "intermediate_size": key("feed_forward_length"), "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
        "vocab_size": key("vocab_size"), "num_target_layers": target_layers, "rope_theta": key("rope.freq_base"),
        "block_size": key("block_size"), "is_causal": key("attention.causal"),
        "dflash_config": {"target_layer_ids": [i - 1 for i in key("target_layers")],
                          "mask_token_id": g.keys["tokenizer.ggml.mask_token_id"],
                          "conv_kernel_size": key("conv_kernel_size"), "conv_group_size": key("conv_group_size"),
                          "selector_rank": key("selector_rank"), "selector_top_k": key("selector_top_k")}}
    head, body = {}, b""
    for name, (kind, shape, data) in g.tensors.items():
        head[hf_name(name)] = {"dtype": TYPES[kind][0], "shape": shape[::-1],
                               "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    paths = [os.path.join(folder, "config.json"), os.path.join(folder, "model.safetensors")]
    with open(paths[0], "w") as f:
        json.dump(config, f, indent=1)
    with open(paths[1], "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)
    return paths
