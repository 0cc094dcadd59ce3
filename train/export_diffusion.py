#!/usr/bin/env python3
"""export_diffusion.py - write the block text-diffusion model as GGUF (arch "diffusion-gemma"), and check the file.

  export_diffusion.py [--work build/train] [--out build/train/export] [--type q8_0] [--check] [--max-steps 48] ...

The sampler's settings (diffusion.eb_*) go into the file. --check reads the file back, puts its tensors into
transformers' DiffusionGemmaForBlockDiffusion and compares the encoder's states and the canvas logits (first step,
self-conditioned step, step behind a committed canvas) with this network's under the same weights.
"""
import argparse
import pathlib
import gguf
import numpy as np
import torch
from diffusion import Diffusion, DiffusionConfig, Sampler
from export_gguf import FILE_TYPES, TYPES, add_tokenizer, put
from train_diffusion import Texts

ARCH = "diffusion-gemma"
GLOBAL = [("embed_tokens.weight", "token_embd.weight"), ("norm.weight", "output_norm.weight"),
          ("self_conditioning.pre_norm.weight", "self_cond_pre_norm.weight")] + \
         [(f"self_conditioning.{x}_proj.weight", f"self_cond_{x}.weight") for x in ("gate", "up", "down")]
LAYER = [("input_layernorm.weight", "attn_norm.weight"), ("self_attn.q_proj.weight", "attn_q.weight"),
         ("self_attn.k_proj.weight", "attn_k.weight"), ("self_attn.v_proj.weight", "attn_v.weight"),
         ("self_attn.o_proj.weight", "attn_output.weight"), ("self_attn.q_norm.weight", "attn_q_norm.weight"),
         ("self_attn.k_norm.weight", "attn_k_norm.weight"),
         ("post_attention_layernorm.weight", "post_attention_norm.weight"),
         ("pre_feedforward_layernorm.weight", "ffn_norm.weight"), ("mlp.gate_proj.weight", "ffn_gate.weight"),
         ("mlp.up_proj.weight", "ffn_up.weight"), ("mlp.down_proj.weight", "ffn_down.weight"),
         ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
         ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
         ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
         ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"), ("router.proj.weight", "ffn_gate_inp.weight"),
         ("router.scale", "ffn_gate_inp.scale"), ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
         ("experts.down_proj", "ffn_down_exps.weight"), ("router.per_expert_scale", "ffn_down_exps.scale"),
         ("layer_scalar", "layer_output_scale.weight"), ("enc_layer_scalar", "enc_layer_output_scale.weight")]


def load_diffusion(work):
    blob = torch.load(work / "diffusion.pt", weights_only=True)
    model = Diffusion(DiffusionConfig(**blob["config"]))
    model.load_state_dict(blob["model"])
    return model.eval(), blob["state"]


def full_layers(c):
    return [(i + 1) % c.interval == 0 for i in range(c.layers)]


def names(c):
    """(name here, name in the file) of every parameter, in file order."""
    yield from GLOBAL
    for i, full in enumerate(full_layers(c)):
        yield from ((f"layers.{i}.{a}", f"blk.{i}.{b}") for a, b in LAYER if not (full and b == "attn_v.weight"))


def tensors(model):
    """(name, float32 tensor, may be quantised) in file order; rope_freqs divides the frequencies of full layers."""
    c, w = model.c, {k: v.detach() for k, v in model.state_dict().items()}
    for a, b in names(c):
        yield b, w.pop(a), is_matrix(b)
        if b == "output_norm.weight":
            freqs = torch.full((c.full_head_dim // 2,), 1e30)
            freqs[:int(c.rotated * c.full_head_dim / 2)] = 1
            yield "rope_freqs.weight", freqs, False
    if w:
        raise SystemExit(f"export_diffusion.py: parameters without a name in the file: {sorted(w)}")


def is_matrix(name):
    return name.endswith(".weight") and "norm" not in name and "scale" not in name and "gate_inp" not in name


def write_diffusion(path, model, tokenizer, kind, s):
    c = model.c
    full = full_layers(c)
    out = gguf.GGUFWriter(path, ARCH)
    out.add_name("ratoon diffusion demo")
    out.add_file_type(FILE_TYPES[kind])
    out.add_quantization_version(2)
    out.add_block_count(c.layers)
    out.add_context_length(c.context)
    out.add_embedding_length(c.hidden)
    out.add_feed_forward_length(c.ff)
    out.add_head_count(c.heads)
    out.add_head_count_kv([c.full_kv_heads if f else c.kv_heads for f in full])
    out.add_layer_norm_rms_eps(c.eps)
    out.add_causal_attention(False)
    out.add_sliding_window(c.window)
    out.add_array(f"{ARCH}.attention.sliding_window_pattern", [not f for f in full])
    out.add_rope_freq_base(c.full_theta)
    out.add_float32(f"{ARCH}.rope.freq_base_swa", c.theta)
    for suffix, width in (("", c.full_head_dim), ("_swa", c.head_dim)):
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            out.add_uint32(f"{ARCH}.{key}{suffix}", width)
    for key in ("attention.shared_kv_layers", "embedding_length_per_layer_input"):
        out.add_uint32(f"{ARCH}.{key}", 0)
    out.add_expert_count(c.experts)
    out.add_expert_used_count(c.used)
    out.add_expert_feed_forward_length(c.expert_ff)
    out.add_final_logit_softcapping(c.softcap)
    out.add_uint32("diffusion.canvas_length", c.canvas)
    for key, value in vars(s).items():
        (out.add_uint32 if isinstance(value, int) else out.add_float32)(f"diffusion.eb_{key}", value)
    add_tokenizer(out, tokenizer, c.vocab)
    put(out, tensors(model), kind)


# ------------------------------------------------------------------------------------------ check

def read_back(path, c):
    """-> the network with the file's weights, rope_freqs"""
    read = {t.name: torch.from_numpy(np.array(gguf.dequantize(t.data, t.tensor_type), np.float32))
            for t in gguf.GGUFReader(path).tensors}
    model, freqs = Diffusion(c).eval(), read.pop("rope_freqs.weight")
    model.load_state_dict({a: read.pop(b).view(model.state_dict()[a].shape) for a, b in names(c)})
    if read:
        raise SystemExit(f"export_diffusion.py: {path}: unknown tensors {sorted(read)}")
    return model, freqs


def hf_model(c):
    import transformers as T
    text = dict(vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.ff, num_hidden_layers=c.layers,
                num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim,
                global_head_dim=c.full_head_dim, num_global_key_value_heads=c.full_kv_heads, sliding_window=c.window,
                layer_types=["full_attention" if f else "sliding_attention" for f in full_layers(c)],
                num_experts=c.experts, top_k_experts=c.used, moe_intermediate_size=c.expert_ff, rms_norm_eps=c.eps,
                final_logit_softcapping=c.softcap, max_position_embeddings=c.context, pad_token_id=0, eos_token_id=1,
                bos_token_id=2, rope_parameters={
                    "sliding_attention": {"rope_type": "default", "rope_theta": c.theta},
                    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": c.rotated,
                                       "rope_theta": c.full_theta}})
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
                  num_key_value_heads=1, head_dim=16)                           # obligatory, and not used
    m = T.DiffusionGemmaForBlockDiffusion(T.DiffusionGemmaConfig(
        text_config=text, vision_config=vision, canvas_length=c.canvas, image_token_id=c.vocab - 1,
        boi_token_id=c.vocab - 2, eoi_token_id=c.vocab - 3)).float().eval()
    m.set_attn_implementation("eager")
    return m


@torch.no_grad()
def check(path, model, ids):
    """ids: a held-out text longer than the window. Prints the largest differences; fails above 1e-4."""
    import transformers as T
    c, hf = model.c, hf_model(model.c)
    copy, freqs = read_back(path, c)
    own = copy.state_dict()
    prefix = lambda k: "model.encoder.language_model." if "enc_layer_scalar" in k else "model.decoder."
    state = {prefix(k) + k.replace("enc_", ""): v for k, v in own.items()}
    missing, extra = hf.load_state_dict(state, strict=False)
    hf.tie_weights()
    tied = lambda n: n == "lm_head.weight" or n.replace("encoder.language_model", "decoder") in state
    missing = [n for n in missing if not tied(n) and "vision" not in n]
    if extra or missing:
        raise SystemExit(f"export_diffusion.py: state dict differs: missing {missing}, extra {extra}")
    inv = hf.model.decoder.rotary_emb.full_attention_inv_freq
    angle = c.full_theta ** (-torch.arange(0, c.full_head_dim, 2).float() / c.full_head_dim) / freqs
    C, P = c.canvas, len(ids) - 2 * c.canvas
    ids, rng = ids[None], torch.Generator().manual_seed(5)
    canvases = torch.randint(c.vocab, (3, C), generator=rng)
    canvases = torch.where(torch.rand(3, C, generator=rng) < 0.5, canvases, ids[0, P:P + C])
    cache = T.DynamicCache(config=hf.config.get_text_config())
    enc = hf.model.encoder.language_model(input_ids=ids[:, :P], past_key_values=cache).last_hidden_state
    want = [enc]
    step = lambda x, **more: hf(decoder_input_ids=x[None], past_key_values=cache, **more).logits
    want.append(step(canvases[0]))
    want.append(step(canvases[1], self_conditioning_logits=want[1] / 0.7))
    hf.model.encoder.language_model(input_ids=ids[:, P:P + C], past_key_values=cache,
                                    position_ids=torch.arange(P, P + C)[None])
    want.append(step(canvases[2]))
    state, kept = copy.encode(ids[:, :P])
    at = torch.tensor([P])
    got = [state, copy.logits(copy.decode(canvases[:1], at, kept))]
    got.append(copy.logits(copy.decode(canvases[1:2], at, kept, copy.soft(got[1] / 0.7))))
    got.append(copy.logits(copy.decode(canvases[2:], at + C, copy.encode(ids[:, :P + C])[1])))
    parts = "encoder", "first step", "conditioned", "behind a commit"
    worst = {n: (g - w).abs().max().item() for n, g, w in zip(parts, got, want)}
    worst["rotation"] = (inv - angle).abs().max().item()
    exact = max((own[k] - v).abs().max().item() for k, v in model.state_dict().items())
    print(f"{path.name}: weights differ from the checkpoint by at most {exact:.2e}; against transformers, logits of "
          f"std {want[1].std():.2f}: {', '.join(f'{k} {v:.1e}' for k, v in worst.items())}")
    if max(worst.values()) > 1e-4:
        raise SystemExit("export_diffusion.py: more than 1e-4 apart")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--out", type=pathlib.Path, help="default: WORK/export")
    ap.add_argument("--type", choices=TYPES, default="q8_0")
    ap.add_argument("--check", action="store_true", help="compare with transformers, which must be installed")
    for key, value in vars(Sampler()).items():
        ap.add_argument("--" + key.replace("_", "-"), type=type(value), default=value)
    a = ap.parse_args()
    out = a.out or a.work / "export"
    out.mkdir(parents=True, exist_ok=True)
    model, st = load_diffusion(a.work)
    path = out / f"ratoon-diffusion-demo-{a.type}.gguf"
    tmp = path.with_suffix(".part")
    s = Sampler(**{k: getattr(a, k) for k in vars(Sampler())})
    write_diffusion(tmp, model, a.work / "tokenizer.json", a.type, s)
    tmp.replace(path)
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, step {st['step']}, {st['tokens'] / 1e6:.2f} M tokens")
    if a.check:
        doc = next(d for d in Texts(a.work / "tokens", "held").docs["templ"])
        check(path, model, torch.from_numpy(doc[:200]))


if __name__ == "__main__":
    main()
