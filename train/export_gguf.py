#!/usr/bin/env python3
"""export_gguf.py - write the demo pair as GGUF (and on request the Hugging Face layout of both).

  export_gguf.py [--work build/train] [--out build/train/export] [--type q8_0] [--draft-type bf16] [--hf DIR]

The target becomes arch "qwen35", the drafter arch "dflash" with the target's tokenizer. What differs from the checkpoint:
  - value heads are tiled: file head j * Hk + kh holds checkpoint head kh * r + j (r = Hv / Hk);
  - zero-centred norms get + 1 (all of the target's but the delta net's output norm; the drafter's are plain already);
  - A_log becomes -exp(A_log), the convolution loses its middle dimension;
  - dflash.target_layers counts layer inputs, so each tap id ("after layer") is written + 1.
An untrained drafter is written when there is no checkpoint of one, so that loaders can be tested early.
"""
import argparse
import json
import pathlib
import gguf
import numpy as np
import torch
from gguf.quants import quantize
from model import Drafter, DrafterConfig, Target, TargetConfig
from tokenizer import CHAT_TEMPLATE, SPECIAL

QT = gguf.GGMLQuantizationType
TYPES = {"f32": QT.F32, "f16": QT.F16, "bf16": QT.BF16, "q8_0": QT.Q8_0}
FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}


def load_target(work, device="cpu"):
    blob = torch.load(work / "target.pt", map_location=device, weights_only=True)
    model = Target(TargetConfig(**blob["config"]))
    model.load_state_dict(blob["model"])
    shorten_mask(model)
    return model.to(device).eval(), blob["state"]


def shorten_mask(model, mask_id=DrafterConfig.mask_id):
    """A token that never occurs is only ever pushed away, and its row grows four times as long as others. As the drafter's
    input that length would drown what its layers add; brought to the usual length, the token still has no chance to be drawn."""
    table = model.model.embed_tokens.weight
    with torch.no_grad():
        table[mask_id] *= min(1.0, (table[:mask_id - 3].norm(dim=1).mean() / table[mask_id].norm()).item())


def load_drafter(work, device="cpu", name="draft.pt"):
    path = work / name
    if not path.exists():
        torch.manual_seed(3)
        return Drafter(DrafterConfig()).to(device).eval(), {"step": 0, "tokens": 0}
    blob = torch.load(path, map_location=device, weights_only=True)
    model = Drafter(DrafterConfig(**blob["config"]))
    model.load_state_dict(blob["model"])
    return model.to(device).eval(), blob["state"]


def tiled(c):
    """Index list: file head m <- checkpoint head."""
    r = c.value_heads // c.key_heads
    return [kh * r + j for j in range(r) for kh in range(c.key_heads)]


def heads(t, order, width, axis=0):
    """Permute the value heads (width entries each) along an axis."""
    t = t.movedim(axis, 0)
    s = t.shape
    return t.reshape(len(order), width, *s[1:])[order].reshape(s).movedim(0, axis).contiguous()


def target_tensors(model):
    """(name, float32 tensor, may be quantised) in file order."""
    c, w = model.c, {k: v.detach().float().cpu() for k, v in model.state_dict().items()}
    order, D = tiled(c), c.delta_dim
    kd = c.key_heads * D
    yield "token_embd.weight", w["model.embed_tokens.weight"], True
    yield "output_norm.weight", w["model.norm.weight"] + 1, False
    for i, layer in enumerate(model.model.layers):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        yield b + "attn_norm.weight", w[p + "input_layernorm.weight"] + 1, False
        if layer.full:
            for a, g in (("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"), ("o", "attn_output")):
                yield f"{b}{g}.weight", w[f"{p}self_attn.{a}_proj.weight"], True
            for a in "qk":
                yield f"{b}attn_{a}_norm.weight", w[f"{p}self_attn.{a}_norm.weight"] + 1, False
        else:
            q = p + "linear_attn."
            x = w[q + "in_proj_qkv.weight"]
            yield b + "attn_qkv.weight", torch.cat([x[:2 * kd], heads(x[2 * kd:], order, D)]), True
            yield b + "attn_gate.weight", heads(w[q + "in_proj_z.weight"], order, D), True
            yield b + "ssm_beta.weight", heads(w[q + "in_proj_b.weight"], order, 1), True
            yield b + "ssm_alpha.weight", heads(w[q + "in_proj_a.weight"], order, 1), True
            x = w[q + "conv1d.weight"][:, 0]
            yield b + "ssm_conv1d.weight", torch.cat([x[:2 * kd], heads(x[2 * kd:], order, D)]), False
            yield b + "ssm_dt.bias", heads(w[q + "dt_bias"], order, 1), False
            yield b + "ssm_a", heads(-w[q + "A_log"].exp(), order, 1), False
            yield b + "ssm_norm.weight", w[q + "norm.weight"], False
            yield b + "ssm_out.weight", heads(w[q + "out_proj.weight"], order, D, axis=1), True
        yield b + "post_attention_norm.weight", w[p + "post_attention_layernorm.weight"] + 1, False
        for a in ("gate", "up", "down"):
            yield f"{b}ffn_{a}.weight", w[f"{p}mlp.{a}_proj.weight"], True


DRAFT_NAMES = [("input_layernorm", "attn_norm"), ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
               ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"), ("self_attn.q_norm", "attn_q_norm"),
               ("self_attn.k_norm", "attn_k_norm"), ("post_attention_layernorm", "ffn_norm"),
               ("mlp.gate_proj", "ffn_gate"),
               ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
               ("attention_conv.kernel_projection", "attn_conv_proj"),
               ("mlp_conv.kernel_projection", "ffn_conv_proj")]
SELECTOR_NAMES = [("hidden_projection.weight", "hidden"), ("predecessor_codebook", "predecessor"),
                  ("successor_codebook", "successor")]


def drafter_tensors(model):
    w = {k: v.detach().float().cpu() for k, v in model.state_dict().items()}
    for hf, name in (("fc", "fc"), ("hidden_norm", "enc.output_norm"), ("norm", "output_norm")):
        yield name + ".weight", w[hf + ".weight"], w[hf + ".weight"].ndim > 1
    for i in range(model.c.layers):
        for hf, name in DRAFT_NAMES:
            t = w[f"layers.{i}.{hf}.weight"]
            yield f"blk.{i}.{name}.weight", t, t.ndim > 1
        for hf, name in (("attention_conv", "attn_conv_base"), ("mlp_conv", "ffn_conv_base")):
            yield f"blk.{i}.{name}", w[f"layers.{i}.{hf}.base_kernel"], False
    for hf, name in SELECTOR_NAMES:
        yield f"selector_{name}.weight", w["candidate_selector." + hf], True


def add_tokenizer(out, path, vocab, mask=False):
    tok = json.loads(path.read_text())
    ids = dict(tok["model"]["vocab"]) | {t["content"]: t["id"] for t in tok["added_tokens"]}
    names = {i: t for t, i in ids.items()}
    if sorted(names) != list(range(vocab)):
        raise SystemExit(f"export_gguf.py: {path}: {len(names)} tokens, expected {vocab} without holes")
    kind = [1] * vocab
    for s in SPECIAL:
        kind[ids[s]] = 4 if s in ("<think>", "</think>") else 3
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list([names[i] for i in range(vocab)])
    out.add_token_types(kind)
    out.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]])
    out.add_eos_token_id(ids["<|im_end|>"])
    out.add_eot_token_id(ids["<|endoftext|>"])
    out.add_pad_token_id(ids["<|endoftext|>"])
    out.add_bos_token_id(ids["<|endoftext|>"])
    out.add_add_bos_token(False)
    if mask:
        out.add_mask_token_id(ids["<|mask|>"])
    out.add_chat_template(CHAT_TEMPLATE)


def put(out, tensors, kind):
    for name, t, matrix in tensors:
        a = np.ascontiguousarray(t.numpy(), np.float32)
        qt = TYPES[kind] if matrix else QT.F32
        if qt == QT.F32:
            out.add_tensor(name, a)
        elif qt == QT.F16:
            out.add_tensor(name, a.astype(np.float16))
        else:
            out.add_tensor(name, quantize(a, qt), raw_dtype=qt)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def write_target(path, model, tokenizer, kind):
    c = model.c
    out = gguf.GGUFWriter(path, "qwen35")
    out.add_name("ratoon demo")
    out.add_file_type(FILE_TYPES[kind])
    out.add_quantization_version(2)
    out.add_block_count(c.layers)
    out.add_context_length(c.context)
    out.add_embedding_length(c.hidden)
    out.add_feed_forward_length(c.ff)
    out.add_head_count(c.heads)
    out.add_head_count_kv(c.kv_heads)
    out.add_key_length(c.head_dim)
    out.add_value_length(c.head_dim)
    out.add_layer_norm_rms_eps(c.eps)
    out.add_rope_freq_base(c.theta)
    out.add_rope_dimension_count(c.rotary)
    out.add_rope_dimension_sections(list(c.sections))
    out.add_ssm_conv_kernel(c.conv)
    out.add_ssm_state_size(c.delta_dim)
    out.add_ssm_group_count(c.key_heads)
    out.add_ssm_time_step_rank(c.value_heads)
    out.add_ssm_inner_size(c.value_heads * c.delta_dim)
    out.add_full_attention_interval(c.interval)
    out.add_vocab_size(c.vocab)
    add_tokenizer(out, tokenizer, c.vocab)
    put(out, target_tensors(model), kind)


def write_drafter(path, model, target, tokenizer, kind):
    c = model.c
    out = gguf.GGUFWriter(path, "dflash")
    out.add_name("ratoon demo drafter")
    out.add_file_type(FILE_TYPES[kind])
    out.add_quantization_version(2)
    out.add_block_count(c.layers)
    out.add_context_length(c.context)
    out.add_embedding_length(c.hidden)
    out.add_feed_forward_length(c.ff)
    out.add_head_count(c.heads)
    out.add_head_count_kv(c.kv_heads)
    out.add_key_length(c.head_dim)
    out.add_value_length(c.head_dim)
    out.add_layer_norm_rms_eps(c.eps)
    out.add_rope_freq_base(c.theta)
    out.add_rope_dimension_sections([c.head_dim // 2, 0, 0, 0])
    out.add_vocab_size(target.vocab)
    out.add_uint32("dflash.block_size", c.block)
    out.add_array("dflash.target_layers", [t + 1 for t in c.taps])
    out.add_bool("dflash.attention.causal", False)
    for key, value in (("conv_kernel_size", c.conv), ("conv_group_size", c.conv_group), ("selector_rank", c.rank),
                       ("selector_top_k", c.top_k)):
        out.add_uint32("dflash." + key, value)
    add_tokenizer(out, tokenizer, target.vocab, mask=True)
    put(out, drafter_tensors(model), kind)


def write_hf(folder, target, drafter, tokenizer):
    """The Hugging Face layout of both (layout A for the drafter)."""
    from safetensors.torch import save_file
    t, d, c = folder / "target", folder / "drafter", target.c
    for f in (t, d):
        f.mkdir(parents=True, exist_ok=True)
    ids = {x["content"]: x["id"] for x in json.loads(tokenizer.read_text())["added_tokens"]}
    w = {k: v.detach().float().contiguous() for k, v in target.state_dict().items()}
    save_file(w, str(t / "model.safetensors"), metadata={"format": "pt"})
    (t / "config.json").write_text(json.dumps(hf_config(c) | {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]}, indent=1))
    for f in (t, d):
        (f / "tokenizer.json").write_text(tokenizer.read_text())
        (f / "tokenizer_config.json").write_text(json.dumps({
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
            "chat_template": CHAT_TEMPLATE}, indent=1))
    k = drafter.c
    save_file({n: v.detach().to(torch.bfloat16).contiguous() for n, v in drafter.state_dict().items()},
              str(d / "model.safetensors"),
              metadata={"format": "pt"})
    (d / "config.json").write_text(json.dumps(dict(
        architectures=["DFlash2DraftModel"], model_type="qwen3", vocab_size=c.vocab, hidden_size=k.hidden,
        intermediate_size=k.ff,
        num_hidden_layers=k.layers, num_attention_heads=k.heads, num_key_value_heads=k.kv_heads, head_dim=k.head_dim,
        hidden_act="silu",
        max_position_embeddings=k.context, rms_norm_eps=k.eps, rope_theta=k.theta, attention_bias=False,
        attention_dropout=0.0,
        tie_word_embeddings=False, layer_types=["full_attention"] * k.layers, use_sliding_window=False,
        sliding_window=None,
        num_target_layers=c.layers, block_size=k.block, torch_dtype="bfloat16", bos_token_id=None,
        eos_token_id=ids["<|im_end|>"],
        dflash_config=dict(mask_token_id=k.mask_id, target_layer_ids=list(k.taps), conv_kernel_size=k.conv,
                           conv_group_size=k.conv_group,
                           selector_rank=k.rank, selector_top_k=k.top_k)), indent=1))


def hf_config(c):
    return dict(vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.ff, num_hidden_layers=c.layers,
                num_attention_heads=c.heads,
                num_key_value_heads=c.kv_heads, head_dim=c.head_dim, linear_num_key_heads=c.key_heads,
                linear_num_value_heads=c.value_heads,
                linear_key_head_dim=c.delta_dim, linear_value_head_dim=c.delta_dim, linear_conv_kernel_dim=c.conv,
                rms_norm_eps=c.eps,
                hidden_act="silu", full_attention_interval=c.interval, tie_word_embeddings=True,
                max_position_embeddings=c.context,
                rope_parameters={"rope_type": "default", "rope_theta": c.theta,
                                 "partial_rotary_factor": c.rotary / c.head_dim,
                                 "mrope_section": list(c.sections[:3]), "mrope_interleaved": True})


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--out", type=pathlib.Path, help="default: WORK/export")
    ap.add_argument("--type", choices=TYPES, default="q8_0")
    ap.add_argument("--draft-type", choices=TYPES, default="bf16")
    ap.add_argument("--hf", type=pathlib.Path,
                    help="also write both checkpoints in the Hugging Face layout into this folder")
    a = ap.parse_args()
    out = a.out or a.work / "export"
    out.mkdir(parents=True, exist_ok=True)
    target, ts = load_target(a.work)
    drafter, ds = load_drafter(a.work)
    tok = a.work / "tokenizer.json"
    names = [out / f"ratoon-demo-{a.type}.gguf", out / f"dflash-ratoon-demo-{a.draft_type}.gguf"]
    for path, write in zip(names, (lambda p: write_target(p, target, tok, a.type),
                                   lambda p: write_drafter(p, drafter, target.c, tok, a.draft_type))):
        tmp = path.with_suffix(".part")
        write(tmp)
        tmp.replace(path)                 # readers never see half a file
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")
    print(f"target step {ts['step']} ({ts['tokens'] / 1e6:.2f} M tokens), drafter step {ds['step']} ({ds['tokens'] / 1e6:.2f} M tokens)")
    if a.hf:
        write_hf(a.hf, target, drafter, tok)


if __name__ == "__main__":
    main()
