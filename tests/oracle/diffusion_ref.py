"""diffusion_ref.py - transformers' DiffusionGemmaForBlockDiffusion for the diffusion-gemma files of tests/help/tiny.c: logits of a
text, logits of a canvas without and with self-conditioning, and its own generate() with our noise in place of torch's.
"""
import numpy as np
import torch
import transformers as T
from transformers.models.diffusion_gemma import generation_diffusion_gemma as G
import tiny_gguf

PARTS = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"} | tiny_gguf.GEMMA4
TOP = {"token_embd.weight": "model.decoder.embed_tokens.weight", "output_norm.weight": "model.decoder.norm.weight"} | {
    f"self_cond_{part}.weight": f"model.decoder.self_conditioning.{name}.weight"
    for part, name in (("pre_norm", "pre_norm"), ("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj"))}


def name_of(name):
    if name in TOP:
        return TOP[name]
    if not name.startswith("blk."):
        return None
    _, layer, rest = name.split(".", 2)
    if rest == "enc_layer_output_scale.weight":
        return f"model.encoder.language_model.layers.{layer}.layer_scalar"
    if rest in tiny_gguf.GEMMA4_BARE:
        return f"model.decoder.layers.{layer}.{tiny_gguf.GEMMA4_BARE[rest]}"
    stem, suffix = rest.rsplit(".", 1)
    return f"model.decoder.layers.{layer}.{PARTS[stem]}.{suffix}"


def load(path):
    """The model of a file: float64, since steps of a canvas add to each other's rounding, eager attention, every parameter of the text part taken from the file."""
    f = tiny_gguf.File(path)
    c, e = tiny_gguf.common(f), tiny_gguf.experts(f)
    near, kv = f.key("attention.sliding_window_pattern"), f.key("attention.head_count_kv")
    c |= dict(head_dim=f.key("attention.key_length_swa"), global_head_dim=f.key("attention.key_length"),
              num_key_value_heads=next(k for k, s in zip(kv, near) if s),
              num_global_key_value_heads=next(k for k, s in zip(kv, near) if not s),
              sliding_window=f.key("attention.sliding_window"), num_experts=e["num_experts"],
              top_k_experts=e["num_experts_per_tok"], moe_intermediate_size=e["moe_intermediate_size"],
              layer_types=["sliding_attention" if s else "full_attention" for s in near],
              rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": f.key("rope.freq_base_swa")},
                               "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                                  "rope_theta": f.key("rope.freq_base")}})
    text = T.DiffusionGemmaTextConfig(**c)
    text.final_logit_softcapping = f.key("final_logit_softcapping")
    eyes = dict(model_type="gemma4_vision", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                num_attention_heads=1, num_key_value_heads=1, head_dim=16)
    model = T.DiffusionGemmaForBlockDiffusion(T.DiffusionGemmaConfig(
        text_config=text.to_dict() | {"final_logit_softcapping": text.final_logit_softcapping}, vision_config=eyes,
        canvas_length=f.keys["diffusion.canvas_length"], image_token_id=-1, boi_token_id=2, eoi_token_id=3))
    model.final_logit_softcapping = f.key("final_logit_softcapping")
    given = {}
    for name, x in tiny_gguf.fuse_experts(f.tensors).items():
        to = name_of(name)
        if to:
            given[to] = torch.from_numpy(np.array(x, np.float32))
    have = model.state_dict()
    for to, x in given.items():
        assert have[to].shape == x.shape, (to, have[to].shape, x.shape)
    left = [k for k in have if k not in given and "vision" not in k and k != "lm_head.weight" and
            not (k.startswith("model.encoder.") and k.replace("encoder.language_model", "decoder") in given)]
    assert not left, left
    with torch.no_grad():
        for to, x in given.items():
            have[to].copy_(x)
    model.tie_weights()
    assert torch.equal(model.lm_head.weight, given["model.decoder.embed_tokens.weight"])
    model = model.double().eval()
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    return model, f


def head(model, x):
    cap = model.final_logit_softcapping
    return torch.tanh(model.lm_head(x) / cap) * cap


@torch.no_grad()
def text(model, ids):
    """Logits [n, vocab] of a text as the encoder sees it, and the taps, as tiny_gguf.run."""
    taps, hooks, stack = {}, [], model.model.encoder.language_model

    def keep(i):
        return lambda module, args, out: taps.__setitem__(i,
                                                          (out[0] if isinstance(out, tuple) else out)[0].numpy().copy())
    for i, layer in enumerate(stack.layers):
        hooks.append(layer.register_forward_hook(keep(i)))
    hooks.append(stack.norm.register_forward_hook(keep(len(stack.layers))))
    model.model.encoder(input_ids=torch.tensor(ids)[None], past_key_values=T.DynamicCache(
        config=model.config.get_text_config()))
    for h in hooks:
        h.remove()
    return head(model, torch.from_numpy(taps[len(stack.layers)])).numpy(), taps


@torch.no_grad()
def canvas(model, prefix, ids, before=None):
    """Logits [n, vocab] of a canvas after prefix; before: the last step's logits, divided by its temperature."""
    n = len(prefix)
    return model(input_ids=torch.tensor(prefix)[None], decoder_input_ids=torch.tensor(ids)[None],
                 past_key_values=T.DynamicCache(config=model.config.get_text_config()),
                 decoder_position_ids=torch.arange(n, n + len(ids))[None],
                 self_conditioning_logits=None if before is None else torch.from_numpy(before).double()[None]).logits[0].numpy()


# ---- our noise ----

def philox(key, c0, c1, c2, c3):
    """First word of Philox4x32-10; c2 may be an array."""
    mask = np.uint64(0xffffffff)
    c = [np.asarray(x, np.uint64) + np.zeros_like(np.asarray(c2, np.uint64)) for x in (c0, c1, c2, c3)]
    k = [key & 0xffffffff, key >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [b >> np.uint64(32) ^ c[1] ^ np.uint64(k[0]), b & mask, a >> np.uint64(32) ^ c[3] ^ np.uint64(k[1]), a & mask]
        c = [x & mask for x in c]
        k = [k[0] + 0x9E3779B9 & 0xffffffff, k[1] + 0xBB67AE85 & 0xffffffff]
    return c[0]


class Noise:
    """Stands in for torch's random numbers in generate(); counts blocks and steps by the order of its calls."""

    def __init__(self, seed, pos, canvas, vocab):
        self.seed, self.pos, self.canvas, self.vocab, self.block, self.step, self.steps = seed, pos, canvas, vocab, -1, 0, 0

    def begin(self):
        self.block += 1
        self.step = 0

    def word(self, row, ids, purpose):
        return philox(self.seed, self.pos + self.block * self.canvas + row, self.step, ids, self.block << 2 | purpose)

    def any(self):
        at = [int(self.word(i, [0], 2)[0]) * self.vocab >> 32 for i in range(self.canvas)]
        return torch.tensor(at)[None]

    def sample(self, probs):
        self.step += 1
        self.steps += 1
        out = []
        for i, p in enumerate(probs.double().numpy()):
            v = (self.word(i, np.arange(self.vocab), 1).astype(np.float64) + 0.5) / 2**32
            with np.errstate(divide="ignore"):
                out.append([int(np.argmax(np.log(p) - np.log(-np.log1p(-v))))])
        return torch.tensor(out)


@torch.no_grad()
def write(model, f, prompt, seed, blocks):
    """The tokens of generate(), and how many steps it took."""
    c, vocab = model.config.canvas_length, model.config.text_config.vocab_size
    noise, key = Noise(seed, len(prompt), c, vocab), lambda name, otherwise: f.keys.get(f"diffusion.{name}", otherwise)
    old = torch.multinomial, G.EntropyBoundSampler.initialize_canvas, model._prepare_denoiser_inputs

    def prepare(*args, **kwargs):
        noise.begin()
        return old[2](*args, **kwargs)
    torch.multinomial = lambda probs, num_samples: noise.sample(probs)
    G.EntropyBoundSampler.initialize_canvas = lambda self, batch_size, device: noise.any()
    model._prepare_denoiser_inputs = prepare
    try:
        out = model.generate(torch.tensor(prompt)[None], generation_config=G.DiffusionGemmaGenerationConfig(
            max_new_tokens=blocks * c, max_denoising_steps=key("eb_max_steps", 48), t_min=key("eb_t_min", 0.4),
            t_max=key("eb_t_max", 0.8), eos_token_id=None, pad_token_id=None, return_dict_in_generate=False,
            sampler_config=G.EntropyBoundSamplerConfig(entropy_bound=key("eb_entropy_bound", 0.1)),
            stability_threshold=key("eb_stability_threshold", 1), confidence_threshold=key("eb_confidence_threshold", 0.005)))
    finally:
        torch.multinomial, G.EntropyBoundSampler.initialize_canvas = old[:2]
        del model._prepare_denoiser_inputs
    return [int(x) for x in out[0, len(prompt):]], noise.steps
